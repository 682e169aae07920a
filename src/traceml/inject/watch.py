"""Calls back when a module has been imported, without importing it. Standard library only.

A finder at the front of `sys.meta_path` that answers only for watched names: it asks the other finders,
lets their loader do the work, puts everything back as it would have been, then calls.
"""

import sys


class _NotifyingLoader:
    def __init__(self, loader, watch):
        self.loader = loader
        self.watch = watch

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = self.loader
        module.__loader__ = self.loader
        self.loader.exec_module(module)
        self.watch.imported(module)


class ImportWatch:
    """`when_imported(name, callback)`: now if it is there already, else right after its import."""

    def __init__(self):
        self.waiting = {}
        self.done = set()

    def when_imported(self, name, callback):
        module = sys.modules.get(name)
        spec = getattr(module, "__spec__", None)
        if name in self.done or (module is not None and not getattr(spec, "_initializing", False)):
            callback(module)
            return
        self.waiting.setdefault(name, []).append(callback)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def imported(self, module):
        self.done.add(module.__name__)
        for callback in self.waiting.pop(module.__name__, ()):
            callback(module)

    def find_spec(self, name, path=None, target=None):
        if name not in self.waiting:
            return None
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec = find(name, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _NotifyingLoader(spec.loader, self)
                return spec
        return None
