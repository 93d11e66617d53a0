"""What calls of the library's matmuls and convolutions compute, as sums of products over named places."""

from weft_loop_ir.contractions.contraction import BATCH as BATCH
from weft_loop_ir.contractions.contraction import COLUMN as COLUMN
from weft_loop_ir.contractions.contraction import INNER as INNER
from weft_loop_ir.contractions.contraction import ROW as ROW
from weft_loop_ir.contractions.contraction import TAP as TAP
from weft_loop_ir.contractions.contraction import Bias as Bias
from weft_loop_ir.contractions.contraction import Contraction as Contraction
from weft_loop_ir.contractions.contraction import Groups as Groups
from weft_loop_ir.contractions.contraction import Loops as Loops
from weft_loop_ir.contractions.contraction import Operand as Operand
from weft_loop_ir.contractions.contraction import Producer as Producer
from weft_loop_ir.contractions.contraction import add_contraction as add_contraction
from weft_loop_ir.contractions.read_calls import contraction_of as contraction_of
from weft_loop_ir.contractions.read_calls import matmul_operands as matmul_operands
from weft_loop_ir.contractions.row_factors import RowFactor as RowFactor
from weft_loop_ir.contractions.row_factors import row_factor as row_factor
