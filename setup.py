"""Only for the optional C switch; everything else is in pyproject.toml."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "traceml.capture._switch",
            ["src/traceml/capture/_switch.c"],
            py_limited_api=True,
            optional=True,  # without a compiler the Python class does the work
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
