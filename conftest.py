"""What the search for doctests leaves out: modules of extras that are not installed."""

from importlib.util import find_spec

collect_ignore_glob = [f"remat/{extra}/*" for extra in ("torch", "jax") if not find_spec(extra)]
if not find_spec("executorch"):  # these two subclass and call its parts
    collect_ignore_glob += [f"remat/torch/executorch/{name}.py" for name in ("lowering", "planning")]
for name, package in {"hugging_face": "transformers", "lightning": "lightning"}.items():
    if not find_spec(package):
        collect_ignore_glob.append(f"remat/torch/trainers/{name}.py")
