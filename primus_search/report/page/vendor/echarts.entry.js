// What report.html uses of Apache ECharts; README.md says how echarts.min.js is made of it.
import {init, use} from "echarts/core";
import {CustomChart, LineChart, ParallelChart, ScatterChart} from "echarts/charts";
import {BrushComponent, DataZoomInsideComponent, GridComponent, ParallelComponent} from "echarts/components";
import {CanvasRenderer, SVGRenderer} from "echarts/renderers";

use([CustomChart, LineChart, ParallelChart, ScatterChart, BrushComponent, DataZoomInsideComponent, GridComponent,
  ParallelComponent, CanvasRenderer, SVGRenderer]);
export {init};
