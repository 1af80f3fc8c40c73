"""Public names of ``remat.modeling``; ``__init__.py`` imports them on first use."""

from remat.modeling.bridges import Bridge as Bridge
from remat.modeling.bridges import PlainLinear as PlainLinear
from remat.modeling.check import violations as violations
from remat.modeling.lower import Lowered as Lowered
from remat.modeling.lower import lower as lower
from remat.modeling.model import Kind as Kind
from remat.modeling.model import Model as Model
from remat.modeling.model import Objective as Objective
from remat.modeling.model import Vars as Vars
from remat.modeling.records import ALWAYS as ALWAYS
from remat.modeling.records import AllDifferent as AllDifferent
from remat.modeling.records import Clauses as Clauses
from remat.modeling.records import Cumulative as Cumulative
from remat.modeling.records import Domain as Domain
from remat.modeling.records import Linear as Linear
from remat.modeling.records import NoOverlap as NoOverlap
from remat.modeling.records import NoOverlap2D as NoOverlap2D
from remat.modeling.records import Record as Record
from remat.modeling.records import Reservoir as Reservoir
