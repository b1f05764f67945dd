"""What other launchers call the settings of a contract: one table for each, `spaces/keys/launchers.yaml`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from primus_search.files.known_keys import key_table
from primus_search.files.plain_forms import from_plain
from primus_search.files.shell.shell_variables import MARK
from primus_search.launch.adapters import LoraKeys
from primus_search.launch.document_packing import PackingKeys
from primus_search.launch.policies import PolicyKeys
from primus_search.values.machine.framework import ANY, Settings

TABLE = "launchers"
VALUE = "$value"
"""What stands for the value of a key that is translated, or that names the family of a model."""
AUTO = "auto"
"""A value that leaves a key to other documents, or other sections: DeepSpeed's and the Trainer's."""
DOCUMENTS = (".yaml", ".yml", ".json")
CLASS = "class."
"""What begins the keys of the classes that a file in Python defines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """What a launcher calls the settings of a contract. Names of keys may have `*`.

    contract     the contract whose keys are meant; any: the names on the right are axes of ours
    program      of a script: what the command that starts it has (a regular expression)
    is_command   whether it is started by that alone, never by a document
    calls        whether its files are programs in Python, whose calls have the settings (`of_program`)
    exports      whether a script of it starts nothing and gives the settings as variables
    bases        its own documents beneath commands that name none (`config`): program, paths in a copy of it
    mirrors      folders of its scripts, and the folder of the document that has the name of each
    ends         how names of documents end that its command has; `.py`: of files of assignments
    layers       keys of the sections that shape a program's own model, its classes among them (`class.NAME`); one with
                 others in these sections has other layers
    below        of a document: the section whose keys are the launcher's own; `lifts`: keys that it knows are those of
                 any section, if one alone has them, and a pattern of sections in which they stay, too
    where        keys that a file of it has, and the values that they have there
    stacks       the software stack it runs on, by the vendor of the devices; else that of the contract
    model, models  the keys that name its model; its own names of presets
    sizes        keys that make it another model than it is called
    config       the key below which the fields of a config.json stand; `config_of`: the switch (`key=value`) that names
                 its family; `config_renamed`, `config_drops`: its own names of fields, and those without an effect;
                 `tokenizer`: keys of the one whose vocabulary counts where the fields have none
    nodes, per_node, gpus  keys, or variables of a script's environment, that give the GPUs
    processes    those that a command starts which names none; 0: one for each device that it lists
    alone        settings with which such a command starts one, whatever devices it lists
    parts        settings inside the text of a key's value, as named groups of a pattern: `key.group`
    prefixes, own  sections whose keys have the contract's own names; single keys that have them
    renamed, translated  the contract's name of a key; the settings that a value of it means
    formulas     settings that several keys give, as sums of products; the first whose keys are all known counts;
                 fields of the config.json below `config`, too
    defaults     what the launcher takes where a file does not say, under the contract's names, beside its own
    assumed      settings that neither a file nor the launcher gives: the value taken, and why, which is said
    overrules    settings that a value of a key means whatever else the file says
    adapters     keys under which a part of the weights is trained that is not modelled, and the values that say so
    lora, policy, packing  what it calls the settings of low-rank adapters, of a policy that is trained, and of how rows
                 are filled from documents
    refused      values of keys with which a file is not read, and why
    effects      keys that move time or memory and are not priced, and how; `irrelevant`: those that move neither
    notes        what is said of every file: what of the job is not priced; `notes_alone`: where it starts one process
    """

    title: str
    source: str
    contract: str = ANY
    program: str = ""
    is_command: bool = False
    calls: bool = False
    exports: bool = False
    bases: Mapping[str, str] = field(default_factory=dict)
    mirrors: Mapping[str, str] = field(default_factory=dict)
    ends: tuple[str, ...] = DOCUMENTS
    layers: tuple[str, ...] = ()
    below: str = ""
    lifts: str = ""
    where: Mapping[str, str] = field(default_factory=dict)
    stacks: Mapping[str, str] = field(default_factory=dict)
    model: tuple[str, ...] = ()
    models: Mapping[str, str] = field(default_factory=dict)
    sizes: tuple[str, ...] = ()
    config: str = ""
    config_of: Mapping[str, str] = field(default_factory=dict)
    config_renamed: Mapping[str, str] = field(default_factory=dict)
    config_drops: tuple[str, ...] = ()
    tokenizer: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    per_node: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    processes: int = 0
    alone: Mapping[str, str] = field(default_factory=dict)
    parts: Mapping[str, str] = field(default_factory=dict)
    prefixes: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    translated: Mapping[str, Mapping[str, Settings]] = field(default_factory=dict)
    formulas: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    defaults: Settings = field(default_factory=dict)
    assumed: Mapping[str, tuple[int | str, str]] = field(default_factory=dict)
    overrules: Mapping[str, Mapping[str, Settings]] = field(default_factory=dict)
    adapters: Mapping[str, str] = field(default_factory=dict)
    lora: LoraKeys = field(default_factory=LoraKeys)
    policy: PolicyKeys = field(default_factory=PolicyKeys)
    packing: PackingKeys = field(default_factory=PackingKeys)
    refused: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    effects: Mapping[str, str] = field(default_factory=dict)
    irrelevant: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    notes_alone: tuple[str, ...] = ()

    def inside(self, document: Settings, *, lifts: bool = True) -> dict[str, Any]:
        """Settings of a document by the launcher's own names: those of the section `below` before others; `lifts`:
        with those of sections, where it has them."""
        section = f"{self.below}."
        document = self._lifted(document) if lifts and self.lifts else document
        return {**document, **{k.removeprefix(section): v for k, v in document.items() if k.startswith(section)}}

    def _lifted(self, document: Settings) -> dict[str, Any]:
        """A document with what the launcher knows of its sections outside of them. What counts and differs between
        sections is a `MARK`ed name."""
        of_formulas = {name for ways in self.formulas.values() for way in ways for name in re.findall(r"[a-z]\w*", way)}
        known = {*self.renamed, *self.translated, *self.overrules, *self.model, *self.own, *self.lora.read}
        known |= {*self.packing.read, *self.refused, *self.effects, *self.irrelevant, *of_formulas}
        values: dict[str, dict[str, Any]] = {}
        for key, value in document.items():
            section, _, end = key.rpartition(".")
            values.setdefault(end, {})[section] = value
        lifted: dict[str, Any] = {}
        for end in (values.keys() & known) - document.keys():
            first, *others = [one for one in values[end].values() if one != AUTO] or [AUTO]
            if all(one == first for one in others):
                lifted[end] = first
            elif end in {*self.renamed, *self.model, *of_formulas}:
                lifted[end] = f"{MARK}{end} (of {', '.join([*values[end]][:3])}){MARK}"
        ends = {key: end for key in document if (end := key.rpartition(".")[2]) in lifted and key not in known}
        stay = {key: one for key, one in document.items() if key not in ends or re.search(self.lifts, key)}
        return {**stay, **{end: lifted[end] for end in ends.values()}}


@lru_cache(maxsize=1)
def launchers() -> dict[str, Launcher]:
    """Every launcher that has a table, by name; in the order in which a file is tried."""
    return {name: from_plain(Launcher, one) for name, one in key_table(TABLE).items()}
