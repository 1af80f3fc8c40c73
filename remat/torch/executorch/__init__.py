"""ExecuTorch: order and addresses of least memory, and the graph of a program (``pip install remat[executorch]``)."""

from remat.runtime.lazy import import_lazily
from remat.torch.versions import check_version

import_lazily(__name__, check_version)
