"""Calls back when a module has been imported, without importing it. Standard library only.

A finder at the front of `sys.meta_path` that answers only for watched names: it asks the other finders,
lets their loader do the work, puts everything back as it would have been, then calls.
"""

import sys


class _NotifyingLoader:
    def __init__(self, loader, watch):
        self.loader = loader
        self.watch = watch

    def __getattr__(self, name):  # whatever else the loader offers (get_data, get_source, ...)
        return getattr(self.loader, name)

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
        self.unfinished = set()  # names whose import had begun before we came
        self.asking = set()  # names that the other finders are being asked for; one of them may ask us back

    def when_imported(self, name, callback):
        module = sys.modules.get(name)
        spec = getattr(module, "__spec__", None)
        if name in self.done or (module is not None and not getattr(spec, "_initializing", False)):
            callback(module)
            return
        self.waiting.setdefault(name, []).append(callback)
        if module is not None:
            self.unfinished.add(name)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def imported(self, module):
        self.done.add(module.__name__)
        for callback in self.waiting.pop(module.__name__, ()):
            callback(module)

    def look_again(self):
        for name in list(self.unfinished):
            module = sys.modules.get(name)
            if module is None or not getattr(module.__spec__, "_initializing", False):
                self.unfinished.discard(name)
                if module is not None:
                    self.imported(module)

    def find_spec(self, name, path=None, target=None):
        if self.unfinished:
            self.look_again()
        if name not in self.waiting or name in self.asking:
            return None
        self.asking.add(name)
        try:
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
        finally:
            self.asking.discard(name)
