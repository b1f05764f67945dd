"""What a projection claims on a cluster that no fit has seen, before and after its own runs."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from primus_search.cost.confidence.uncertainty import (
    MEMORY,
    NOTHING,
    Exposed,
    Knowledge,
    band,
    comparison,
    interval,
    knowledge,
    site_band,
    site_half_width,
    site_ratio,
)
from primus_search.declare.space_file import load_space
from primus_search.files.hardware_files import is_guess, load_cluster, load_hardware, site_of
from primus_search.files.search_path import FileKind, names
from primus_search.models.model_files import load_model
from primus_search.values.candidates import Fp8
from primus_search.values.machine.stack import ErrorBand

DENSE, EXPERTS = load_model("llama3.1_8b"), load_model("mixtral_8x7b")
THEIRS = load_cluster("h100", 4, "nemo_2024")
VENDORS = replace(THEIRS, site=None)
OWN = replace(THEIRS, stack=replace(THEIRS.stack, errors={MEMORY: ErrorBand(low=0.9, high=1.1, runs=3.0)}))
ONE = np.array([Fp8.NONE]), np.array([1000.0]), NOTHING


def test_a_cluster_is_at_first_contact_until_it_is_said_to_be_the_vendors_or_its_runs_are_learned() -> None:
    assert [knowledge(one) for one in (THEIRS, VENDORS, OWN)] == list(Knowledge)


def test_a_publisher_whose_runs_are_in_the_fits_has_no_error_of_a_site() -> None:
    hardware = load_hardware("h100")
    assert site_of(hardware, "NVIDIA/dgxc-benchmarking") is None
    assert THEIRS.site is not None and site_of(hardware) == site_of(hardware, "somebody") == THEIRS.site


def test_first_contact_expects_less_and_claims_less_than_the_vendors_cluster() -> None:
    theirs, vendors = (interval(cluster, DENSE, *ONE) for cluster in (THEIRS, VENDORS))
    assert theirs.expected < vendors.expected == 1000.0
    assert theirs.low < vendors.low and theirs.high > vendors.high
    found = band(VENDORS, DENSE, Fp8.NONE)
    assert site_band(OWN, DENSE, found, NOTHING) == ([found.low], [found.high])


def test_the_band_surrounds_the_rate_to_expect_and_widens_with_what_no_run_says() -> None:
    """Exposed exchanges, launches, a stack never run on such a model, a device whose rate no such run identified."""
    site, plain = THEIRS.site, interval(THEIRS, DENSE, *ONE)
    assert site is not None and plain.low < plain.expected < plain.high
    width = site_half_width(site, DENSE)
    shares = np.array([0.0, 0.2, 0.6])
    for name in ("host", "exchange"):
        exposed = Exposed(**{"host": np.zeros(3), "exchange": np.zeros(3)} | {name: shares})
        assert (np.diff(site_half_width(site, DENSE, exposed)) > 0.0).all()
    assert site_half_width(site, DENSE, stack_half=0.4) > width
    assert site_half_width(site, DENSE, is_named=False) > width
    assert site_half_width(replace(site, new_families=("dense",)), DENSE) > width
    assert site_half_width(replace(site, new_families=("moe",)), DENSE) == width
    unseen = interval(THEIRS, EXPERTS, *ONE)
    assert unseen.high / unseen.low > plain.high / plain.low


def test_devices_whose_rate_no_run_of_a_family_identified_are_known_by_name() -> None:
    b300, gb300 = (load_cluster(name, 1).site for name in ("b300", "gb300"))
    assert b300 is not None and gb300 is not None
    assert (b300.new_families, gb300.new_families) == (("dense",), ())


def test_a_transport_that_no_fitted_run_used_widens_what_exchange_leaves_unknown() -> None:
    own, other = (load_cluster(name, 32).site for name in ("b300", "b300@efa"))
    assert own is not None and other is not None
    exposed = Exposed(host=np.zeros(2), exchange=np.array([0.0, 0.4]))
    widths = [site_half_width(site, DENSE, exposed) for site in (own, other)]
    assert widths[0][0] == widths[1][0] and widths[0][1] < widths[1][1]


def test_two_rows_of_a_ranking_compare_closer_than_either_is_known() -> None:
    found = interval(THEIRS, DENSE, *ONE)
    assert comparison(THEIRS, DENSE) < found.high[0] / found.expected[0] - 1.0
    assert comparison(VENDORS, DENSE) == 0.04


def test_a_space_may_mean_the_vendors_own_cluster(tmp_path: Path) -> None:
    lines = "model: llama3.1_8b\nhardware: h100\nworkload: {seq_length: 4096, global_batch_size: 256}\n"
    for word, site in (("", THEIRS.site), ("site: vendor\n", None)):
        path = tmp_path / "space.yaml"
        path.write_text(lines + word)
        assert load_space(path).cluster.site == site


def test_software_that_nobody_named_has_the_rate_and_the_band_of_its_mixture() -> None:
    """The mixture holds a site's errors already; a stack that is named, and the vendor's cluster, are as they were."""
    unnamed = load_cluster("h100", 4)
    found = unnamed.stack.errors["assumed_dense/sm90"]
    assert unnamed.stack.is_assumed and found.stacks.count("0.") >= 2
    of = interval(unnamed, DENSE, *ONE)
    assert np.allclose([of.low[0], of.high[0]], [1000.0 * found.low, 1000.0 * found.high])
    assert np.isclose(of.expected[0] ** 2, of.low[0] * of.high[0])
    named = replace(unnamed, stack=replace(unnamed.stack, is_assumed=False))
    assert named.site is not None and site_ratio(named, DENSE) == named.site.mean_ratio > site_ratio(unnamed, DENSE)
    assert site_ratio(replace(unnamed, site=None), DENSE) == 1.0


def test_the_default_stack_of_every_device_that_is_a_guess_has_such_a_band() -> None:
    for name in names(FileKind.HARDWARE):
        hardware = load_hardware(name)
        if is_guess(hardware) and hardware.default_stack and not hardware.accelerator.ancestor:  # theirs is a spread
            bands = load_cluster(name, 1).stack.errors
            assert {f"assumed_{family}/{hardware.accelerator.arch}" for family in ("dense", "moe")} <= set(bands), name
