"""What `tilewright` has of the families of operations, for type checkers.

Made by docs/site/stubs.py; do not edit.
"""

import collections.abc
from typing import Any

from tilewright.ops.attention.config import AttentionConfig as AttentionConfig
from tilewright.ops.attention.problem import AttentionProblem as AttentionProblem
from tilewright.ops.attention_backward.config import AttentionBackwardConfig as AttentionBackwardConfig
from tilewright.ops.attention_backward.problem import AttentionBackwardProblem as AttentionBackwardProblem
from tilewright.ops.causal_conv.config import CausalConvConfig as CausalConvConfig
from tilewright.ops.causal_conv.problem import CausalConvProblem as CausalConvProblem
from tilewright.ops.conv.config import ConvConfig as ConvConfig
from tilewright.ops.conv.problem import ConvProblem as ConvProblem
from tilewright.ops.gemm.config import GemmConfig as GemmConfig
from tilewright.ops.gemm.problem import GemmProblem as GemmProblem
from tilewright.ops.gemm.shuffle import shuffle as shuffle
from tilewright.ops.gemm.shuffle import unshuffle as unshuffle
from tilewright.ops.grouped_gemm.config import GroupedGemmConfig as GroupedGemmConfig
from tilewright.ops.grouped_gemm.problem import GroupedGemmProblem as GroupedGemmProblem
from tilewright.ops.merge_states.config import MergeStatesConfig as MergeStatesConfig
from tilewright.ops.merge_states.problem import MergeStatesProblem as MergeStatesProblem

Array = Any
Col2imProblem: type[Any]
Col2imConfig: type[Any]
CrossEntropyProblem: type[Any]
CrossEntropyConfig: type[Any]
CrossEntropyBackwardProblem: type[Any]
CrossEntropyBackwardConfig: type[Any]
ElementwiseChainProblem: type[Any]
ElementwiseChainConfig: type[Any]
GatedActivationProblem: type[Any]
GatedActivationConfig: type[Any]
GatedActivationBackwardProblem: type[Any]
GatedActivationBackwardConfig: type[Any]
HstuAttentionProblem: type[Any]
HstuAttentionConfig: type[Any]
HstuAttentionBackwardProblem: type[Any]
HstuAttentionBackwardConfig: type[Any]
Im2colProblem: type[Any]
Im2colConfig: type[Any]
LayerNormProblem: type[Any]
LayerNormConfig: type[Any]
LayerNormBackwardProblem: type[Any]
LayerNormBackwardConfig: type[Any]
LogSoftmaxProblem: type[Any]
LogSoftmaxConfig: type[Any]
LogSoftmaxBackwardProblem: type[Any]
LogSoftmaxBackwardConfig: type[Any]
PoolProblem: type[Any]
PoolConfig: type[Any]
PoolBackwardProblem: type[Any]
PoolBackwardConfig: type[Any]
QuantiseExpertRowsProblem: type[Any]
QuantiseExpertRowsConfig: type[Any]
QuantiseRowsProblem: type[Any]
QuantiseRowsConfig: type[Any]
ReductionProblem: type[Any]
ReductionConfig: type[Any]
ReductionBackwardProblem: type[Any]
ReductionBackwardConfig: type[Any]
RmsNormProblem: type[Any]
RmsNormConfig: type[Any]
RmsNormBackwardProblem: type[Any]
RmsNormBackwardConfig: type[Any]
RotaryProblem: type[Any]
RotaryConfig: type[Any]
RotaryInPlaceProblem: type[Any]
RotaryInPlaceConfig: type[Any]
RotaryPagedProblem: type[Any]
RotaryPagedConfig: type[Any]
SoftmaxProblem: type[Any]
SoftmaxConfig: type[Any]
SoftmaxBackwardProblem: type[Any]
SoftmaxBackwardConfig: type[Any]
SortByExpertProblem: type[Any]
SortByExpertConfig: type[Any]
SortedRoutingProblem: type[Any]
SortedRoutingConfig: type[Any]
StridedCopyProblem: type[Any]
StridedCopyConfig: type[Any]
SumOfExpertsProblem: type[Any]
SumOfExpertsConfig: type[Any]
SumOfExpertsBackwardProblem: type[Any]
SumOfExpertsBackwardConfig: type[Any]
TakeRowsProblem: type[Any]
TakeRowsConfig: type[Any]
TopkProblem: type[Any]
TopkConfig: type[Any]
TopkRoutingProblem: type[Any]
TopkRoutingConfig: type[Any]
TopkRoutingBackwardProblem: type[Any]
TopkRoutingBackwardConfig: type[Any]

def attention(
    q: Array,
    k: Array,
    v: Array | None = None,
    /,
    *,
    out: Array | tuple[Array, ...] | None = None,
    stream: Any = None,
    mask: str | None = "none",
    causal: bool | None = False,
    is_causal: bool | None = False,
    window: tuple[int | None, int | None] | None = (None, None),
    first: int | None = 0,
    corner: str | None = "bottom_right",
    block_size: int | None = None,
    density: float | None = 0.0,
    softcap: float | None = 0.0,
    dropout: float | None = 0.0,
    lse: bool | None = False,
    random: bool | None = False,
    layout: str | None = "bshd",
    kv_layout: str | None = None,
    max_q: int | None = None,
    max_kv: int | None = None,
    head_dim_v: int | None = None,
    scale_block: int | None = None,
    rotary: str | None = "half",
    dtype_o: Any | None = None,
    deterministic: bool | None = False,
    batch_invariant: bool | None = False,
    bias: Array | None = None,
    blocks: Array | None = None,
    slopes: Array | None = None,
    sinks: Array | None = None,
    q_offsets: Array | None = None,
    kv_offsets: Array | None = None,
    q_used: Array | None = None,
    kv_used: Array | None = None,
    left_pad: Array | None = None,
    page_table: Array | None = None,
    page_list: Array | None = None,
    page_starts: Array | None = None,
    q_scale: Array | float | None = None,
    k_scale: Array | float | None = None,
    v_scale: Array | float | None = None,
    o_scale: Array | float | None = None,
    new_k: Array | None = None,
    new_v: Array | None = None,
    rotary_cos: Array | None = None,
    rotary_sin: Array | None = None,
    scale: float | None = None,
    seed: int | None = None,
    offset: int | None = None,
) -> Any:
    """O = softmax(mask(scale · Q·Kᵀ))·V, without the matrix of scores in memory."""

def attention_backward(
    q: Array,
    k: Array,
    v: Array,
    o: Array,
    lse: Array,
    do: Array,
    /,
    *gradients: Array,
    out: Array | tuple[Array, ...] | None = None,
    stream: Any = None,
    mask: str | None = "none",
    causal: bool | None = False,
    is_causal: bool | None = False,
    window: tuple[int | None, int | None] | None = (None, None),
    first: int | None = 0,
    corner: str | None = "bottom_right",
    block_size: int | None = None,
    density: float | None = 0.0,
    softcap: float | None = 0.0,
    dropout: float | None = 0.0,
    layout: str | None = "bshd",
    kv_layout: str | None = None,
    max_q: int | None = None,
    max_kv: int | None = None,
    head_dim_v: int | None = None,
    scale_block: int | None = None,
    rotary: str | None = "half",
    deterministic: bool | None = False,
    batch_invariant: bool | None = False,
    bias: Array | None = None,
    blocks: Array | None = None,
    slopes: Array | None = None,
    sinks: Array | None = None,
    q_offsets: Array | None = None,
    kv_offsets: Array | None = None,
    q_used: Array | None = None,
    kv_used: Array | None = None,
    left_pad: Array | None = None,
    page_table: Array | None = None,
    page_list: Array | None = None,
    page_starts: Array | None = None,
    q_scale: Array | float | None = None,
    k_scale: Array | float | None = None,
    v_scale: Array | float | None = None,
    o_scale: Array | float | None = None,
    new_k: Array | None = None,
    new_v: Array | None = None,
    rotary_cos: Array | None = None,
    rotary_sin: Array | None = None,
    dlse: Array | None = None,
    grads: str | None = "dq+dk+dv",
    scale: float | None = None,
    seed: int | None = None,
    offset: int | None = None,
) -> Any:
    """The gradients of `attention`, from what it read and wrote and what arrives for O."""

def causal_conv(
    x: Array,
    /,
    *operands: Array,
    out: Array | tuple[Array, ...] | None = None,
    stream: Any = None,
    direction: str | None = "forward",
    activation: str | None = None,
    final: bool | None = False,
    dy: Array | None = None,
    dfinal_states: Array | None = None,
    bias: Array | None = None,
    seq_idx: Array | None = None,
    initial_states: Array | None = None,
    cache_seqlens: Array | None = None,
    conv_state_indices: Array | None = None,
) -> Any:
    """A causal convolution of sequences, its gradients, or an update of its states."""

def causal_conv1d(
    x: Any,
    weight: Any,
    bias: Any = None,
    seq_idx: Any = None,
    initial_states: Any = None,
    return_final_states: bool = False,
    final_states_out: Any = None,
    activation: str | None = None,
) -> Any:
    """A causal depthwise convolution of sequences; differentiable in x, weight, bias and
    initial states."""

def causal_conv1d_update(
    x: Any,
    conv_state: Any,
    weight: Any,
    bias: Any = None,
    activation: str | None = None,
    cache_seqlens: Any = None,
    conv_state_indices: Any = None,
) -> Any:
    """New positions of `causal_conv1d`, behind those in a state, which is updated in place."""

def col2im(
    y: Array,
    /,
    *,
    out: Array | tuple[Array, ...] | None = None,
    stream: Any = None,
    filter_d: int | None = 1,
    filter_h: int | None = 1,
    filter_w: int | None = 1,
    stride_d: int | None = 1,
    stride_h: int | None = 1,
    stride_w: int | None = 1,
    pad_d: int | None = 0,
    pad_h: int | None = 0,
    pad_w: int | None = 0,
    dilation_d: int | None = 1,
    dilation_h: int | None = 1,
    dilation_w: int | None = 1,
    depth: int | None = 1,
    height: int | None = 1,
    width: int | None = 1,
    groups: int | None = 1,
) -> Any:
    """Rows that windows of images are (`im2col`) summed back into images: its gradient."""

def column_to_image(
    columns: Any,
    size: Any,
    filter: Any,
    *,
    stride: Any = 1,
    pad: Any = 0,
    pad_after: Any = None,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    """Rows [windows of all images, columns], summed into images [n, pixels…, channels]: the
    gradient of `image_to_column`, with its arguments."""

def conv(
    x: Array,
    w: Array,
    /,
    *,
    out: Array | tuple[Array, ...] | None = None,
    stream: Any = None,
    direction: str | None = "forward",
    spatial: tuple[int, ...] | None = None,
    filter: tuple[int, ...] | None = None,
    stride: tuple[int, ...] | None = None,
    pad: tuple[int, ...] | None = None,
    pad_after: tuple[int, ...] | None = None,
    dilation: tuple[int, ...] | None = None,
    groups: int | None = 1,
    epilogue: str | None = "",
    dtype_out: Any | None = None,
    precision: str | None = "ieee",
    bias: Array | None = None,
    row_scale: Array | None = None,
    col_scale: Array | None = None,
    scale: Array | float | None = None,
    add: Array | None = None,
    mul: Array | None = None,
    low: Array | float | None = None,
    high: Array | float | None = None,
    limit: Array | float | None = None,
    alpha: Array | float | None = None,
    **numbered: Array | None,
) -> Any:
    """A convolution, or its gradient of the data or of the weights, in 1 to 3 dimensions."""

def conv1d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: int | collections.abc.Sequence[int] = 1,
    padding: int | collections.abc.Sequence[int] | str = 0,
    dilation: int | collections.abc.Sequence[int] = 1,
    groups: int = 1,
) -> Any:
    """As ``torch.nn.functional.conv1d``; differentiable."""

def conv2d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: int | collections.abc.Sequence[int] = 1,
    padding: int | collections.abc.Sequence[int] | str = 0,
    dilation: int | collections.abc.Sequence[int] = 1,
    groups: int = 1,
) -> Any:
    """As ``torch.nn.functional.conv2d``; differentiable."""

def conv3d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: int | collections.abc.Sequence[int] = 1,
    padding: int | collections.abc.Sequence[int] | str = 0,
    dilation: int | collections.abc.Sequence[int] = 1,
    groups: int = 1,
) -> Any:
    """As ``torch.nn.functional.conv3d``; differentiable."""

def conv_transpose1d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: int | collections.abc.Sequence[int] = 1,
    padding: int | collections.abc.Sequence[int] = 0,
    output_padding: int | collections.abc.Sequence[int] = 0,
    groups: int = 1,
    dilation: int | collections.abc.Sequence[int] = 1,
) -> Any:
    """As ``torch.nn.functional.conv_transpose1d``; differentiable."""

def conv_transpose2d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: int | collections.abc.Sequence[int] = 1,
    padding: int | collections.abc.Sequence[int] = 0,
    output_padding: int | collections.abc.Sequence[int] = 0,
    groups: int = 1,
    dilation: int | collections.abc.Sequence[int] = 1,
) -> Any:
    """As ``torch.nn.functional.conv_transpose2d``; differentiable."""

def conv_transpose3d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: int | collections.abc.Sequence[int] = 1,
    padding: int | collections.abc.Sequence[int] = 0,
    output_padding: int | collections.abc.Sequence[int] = 0,
    groups: int = 1,
    dilation: int | collections.abc.Sequence[int] = 1,
) -> Any:
    """As ``torch.nn.functional.conv_transpose3d``; differentiable."""

def conv1d_input(
    input_size: collections.abc.Sequence[int],
    weight: Any,
    grad_output: Any,
    stride: int | collections.abc.Sequence[int] = 1,
    padding: int | collections.abc.Sequence[int] = 0,
    dilation: int | collections.abc.Sequence[int] = 1,
    groups: int = 1,
) -> Any:
    """As ``torch.nn.grad.conv1d_input``."""

def conv2d_input(
    input_size: collections.abc.Sequence[int],
    weight: Any,
    grad_output: Any,
    stride: int | collections.abc.Sequence[int] = 1,
    padding: int | collections.abc.Sequence[int] = 0,
    dilation: int | collections.abc.Sequence[int] = 1,
    groups: int = 1,
) -> Any:
    """As ``torch.nn.grad.conv2d_input``."""

def conv3d_input(
    input_size: collections.abc.Sequence[int],
    weight: Any,
    grad_output: Any,
    stride: int | collections.abc.Sequence[int] = 1,
    padding: int | collections.abc.Sequence[int] = 0,
    dilation: int | collections.abc.Sequence[int] = 1,
    groups: int = 1,
) -> Any:
    """As ``torch.nn.grad.conv3d_input``."""

def conv1d_weight(
    input: Any,
    weight_size: collections.abc.Sequence[int],
    grad_output: Any,
    stride: int | collections.abc.Sequence[int] = 1,
    padding: int | collections.abc.Sequence[int] = 0,
    dilation: int | collections.abc.Sequence[int] = 1,
    groups: int = 1,
) -> Any:
    """As ``torch.nn.grad.conv1d_weight``."""

def conv2d_weight(
    input: Any,
    weight_size: collections.abc.Sequence[int],
    grad_output: Any,
    stride: int | collections.abc.Sequence[int] = 1,
    padding: int | collections.abc.Sequence[int] = 0,
    dilation: int | collections.abc.Sequence[int] = 1,
    groups: int = 1,
) -> Any:
    """As ``torch.nn.grad.conv2d_weight``."""

def conv3d_weight(
    input: Any,
    weight_size: collections.abc.Sequence[int],
    grad_output: Any,
    stride: int | collections.abc.Sequence[int] = 1,
    padding: int | collections.abc.Sequence[int] = 0,
    dilation: int | collections.abc.Sequence[int] = 1,
    groups: int = 1,
) -> Any:
    """As ``torch.nn.grad.conv3d_weight``."""

def cross_entropy(
    logits: Array,
    target: Array,
    /,
    *,
    out: Array | tuple[Array, ...] | None = None,
    stream: Any = None,
    with_lse: bool | None = False,
    with_gradient: bool | None = False,
    weight: Array | None = None,
    ignore_index: int | None = None,
    label_smoothing: float | None = None,
    lse_square_scale: float | None = None,
    factor: float | None = None,
) -> Any:
    """Cross-entropy of rows of logits with the class that each should have: a loss for each row."""

def cross_entropy_loss(
    input: Any,
    target: Any,
    weight: Any = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    """``torch.nn.functional.cross_entropy`` of classes in the last dimension."""

def cross_entropy_backward(
    logits: Array,
    target: Array,
    lse: Array,
    dloss: Array,
    /,
    *,
    out: Array | tuple[Array, ...] | None = None,
    stream: Any = None,
    weight: Array | None = None,
    ignore_index: int | None = None,
    label_smoothing: float | None = None,
    lse_square_scale: float | None = None,
    factor: float | None = None,
) -> Any:
    """Gradient of `cross_entropy`, from the logits, their rows' lse and what arrives for each loss."""

def elementwise_chain(
    x: Array,
    /,
    *,
    out: Array | tuple[Array, ...] | None = None,
    stream: Any = None,
    chain: str | None = "",
    x_over: int | None = 15,
    a_over: int | None = 15,
    b_over: int | None = 15,
    c_over: int | None = 15,
    n0: int | None = 1,
    n1: int | None = 1,
    n2: int | None = 1,
    n3: int | None = 1,
    out_dtype: Any | None = None,
    a: Array | None = None,
    b: Array | None = None,
    c: Array | None = None,
) -> Any:
    """A chain of operations on elements, with up to three operands that are broadcast."""

def elementwise(
    x: Any,
    *others: Any,
    chain: str,
    out_dtype: Any = None,
) -> Any:
    """y = the operations of `chain`, one after another, of x and of further operands, each
    broadcast as torch does. y has x's type unless `out_dtype` says another, and lies in memory
    as x does if x has its shape."""

def gated_activation(
    x: Array,
    /,
    *,
    out: Array | tuple[Array, ...] | None = None,
    stream: Any = None,
    gate: str | None = "silu",
    interleaved: bool | None = False,
    quant: str | None = "",
    out_dtype: Any | None = None,
    up: Array | None = None,
    scale: Array | float | None = None,
    limit: float | None = None,
    alpha: float | None = None,
    shift: float | None = None,
) -> Any:
    """Gated activations of rows (Shazeer, arXiv:2002.05202): SwiGLU, GeGLU, ReGLU and GLU."""

def gated_activation_backward(
    x: Array,
    dy: Array,
    /,
    *,
    out: Array | tuple[Array, ...] | None = None,
    stream: Any = None,
    gate: str | None = "silu",
    interleaved: bool | None = False,
    up: Array | None = None,
    limit: float | None = None,
    alpha: float | None = None,
    shift: float | None = None,
) -> Any:
    """Gradients of `gated_activation`: of both halves in one array laid out like x, or of x and up."""

def gemm(
    A: Array,
    B: Array,
    /,
    *operands: Array,
    out: Array | tuple[Array, ...] | None = None,
    stream: Any = None,
    precision: str | None = "ieee",
    epilogue: str | None = "",
    scale_a: str | None = "",
    scale_b: str | None = "",
    pre_a: str | None = "",
    pre_b: str | None = "",
    dtype_a: Any | None = None,
    dtype_b: Any | None = None,
    equation: str | None = None,
    batching: str | None = None,
    constant_b: bool | None = False,
    bias: Array | None = None,
    row_scale: Array | None = None,
    col_scale: Array | None = None,
    scale: Array | float | None = None,
    add: Array | None = None,
    mul: Array | None = None,
    low: Array | float | None = None,
    high: Array | float | None = None,
    limit: Array | float | None = None,
    alpha: Array | float | None = None,
    **numbered: Array | None,
) -> Any:
    """C = A·B, and what follows it elementwise."""

def grouped_gemm(
    A: Array,
    B: Array,
    offsets: Array,
    /,
    *operands: Array,
    out: Array | tuple[Array, ...] | None = None,
    stream: Any = None,
    precision: str | None = "ieee",
    epilogue: str | None = "",
    scale_a: str | None = "",
    scale_b: str | None = "",
    dtype_a: Any | None = None,
    dtype_b: Any | None = None,
    zero_b: bool | None = False,
    sizes: tuple[tuple[int, int, int], ...] | None = None,
    layout: str | None = None,
    alignment: int | None = 1,
    zero_rest: bool | None = False,
    gates_apart: bool | None = False,
    per_row: int | None = 1,
    rows: Array | None = None,
    bounds: bool | None = False,
    quant: str | None = "",
    bias: Array | None = None,
    row_scale: Array | None = None,
    col_scale: Array | None = None,
    scale: Array | float | None = None,
    add: Array | None = None,
    mul: Array | None = None,
    low: Array | float | None = None,
    high: Array | float | None = None,
    limit: Array | float | None = None,
    alpha: Array | float | None = None,
    **numbered: Array | None,
) -> Any:
    """C_g = A_g·B_g for each group g in one launch; sizes are read on the device."""

def hstu_attention(
    q: Array,
    k: Array,
    v: Array,
    offsets: Array,
    /,
    *,
    out: Array | tuple[Array, ...] | None = None,
    stream: Any = None,
    causal: bool | None = True,
    contextual_seq_len: int | None = 0,
    max_attn_len: int | None = 0,
    min_full_attn_seq_len: int | None = 0,
    num_targets: Array | None = None,
    max_seq_len: int | None = None,
    alpha: float | None = None,
) -> Any:
    """HSTU's attention (Zhai et al., arXiv:2402.17152) of jagged sequences, forward."""

def hstu_attention_backward(
    q: Array,
    k: Array,
    v: Array,
    offsets: Array,
    do: Array,
    /,
    *,
    out: Array | tuple[Array, ...] | None = None,
    stream: Any = None,
    causal: bool | None = True,
    contextual_seq_len: int | None = 0,
    max_attn_len: int | None = 0,
    min_full_attn_seq_len: int | None = 0,
    num_targets: Array | None = None,
    max_seq_len: int | None = None,
    alpha: float | None = None,
) -> Any:
    """Gradients of `hstu_attention`: dQ, dK and dV, with the same bits in every run."""

def im2col(
    x: Array,
    /,
    *,
    out: Array | tuple[Array, ...] | None = None,
    stream: Any = None,
    filter_d: int | None = 1,
    filter_h: int | None = 1,
    filter_w: int | None = 1,
    stride_d: int | None = 1,
    stride_h: int | None = 1,
    stride_w: int | None = 1,
    pad_d: int | None = 0,
    pad_h: int | None = 0,
    pad_w: int | None = 0,
    dilation_d: int | None = 1,
    dilation_h: int | None = 1,
    dilation_w: int | None = 1,
    after_d: int | None = 0,
    after_h: int | None = 0,
    after_w: int | None = 0,
    groups: int | None = 1,
) -> Any:
    """Windows of images as rows: what turns a convolution into a product (CK's ``image_to_column``)."""

def image_to_column(
    x: Any,
    filter: Any,
    *,
    stride: Any = 1,
    pad: Any = 0,
    pad_after: Any = None,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    """The windows of images x [n, pixels…, channels] as rows [windows of all images, columns]."""

def layer_norm(
    x: Array,
    /,
    *,
    out: Array | tuple[Array, ...] | None = None,
    stream: Any = None,
    quant: str | None = "",
    statistics: bool | None = False,
    out_dtype: Any | None = None,
    w: Array | None = None,
    b: Array | None = None,
    residual: Array | None = None,
    smooth: Array | None = None,
    scale: Array | float | None = None,
    eps: float | None = None,
    offset: float | None = None,
) -> Any:
    """Layer norm (Ba, Kiros and Hinton, arXiv:1607.06450) of rows, with a residual added before it."""

def layer_norm_backward(
    x: Array,
    dy: Array,
    /,
    *,
    out: Array | tuple[Array, ...] | None = None,
    stream: Any = None,
    w_dtype: Any | None = None,
    b_dtype: Any | None = None,
    w: Array | None = None,
    b: Array | None = None,
    residual: Array | None = None,
    dtotal: Array | None = None,
    eps: float | None = None,
    offset: float | None = None,
) -> Any:
    """Gradients of `layer_norm`: dx, which is the residual's too, dw and db."""

def log_softmax(
    x: Array,
    /,
    *,
    out: Array | tuple[Array, ...] | None = None,
    stream: Any = None,
    out_dtype: Any | None = None,
    scale: float | None = None,
) -> Any:
    """Logarithm of the softmax of rows: y = scale · x - log(sum(exp(scale · x)))."""

def log_softmax_backward(
    y: Array,
    dy: Array,
    /,
    *,
    out: Array | tuple[Array, ...] | None = None,
    stream: Any = None,
    out_dtype: Any | None = None,
    scale: float | None = None,
) -> Any:
    """Gradient of `log_softmax`, from its result: dx = scale · (dy - sum(dy) · exp(y))."""

def merge_states(
    o: Array,
    lse: Array,
    /,
    *operands: Array,
    out: Array | tuple[Array, ...] | None = None,
    stream: Any = None,
    in_place: bool | None = False,
    other_o: Array | None = None,
    other_lse: Array | None = None,
    mask: Array | None = None,
) -> Any:
    """States of attention over different keys, merged into attention over all of them."""

def pool(
    x: Array,
    /,
    *,
    out: Array | tuple[Array, ...] | None = None,
    stream: Any = None,
    mode: str | None = "max",
    include_pad: bool | None = True,
    kernel_d: int | None = 1,
    kernel_h: int | None = 1,
    kernel_w: int | None = 1,
    stride_d: int | None = 1,
    stride_h: int | None = 1,
    stride_w: int | None = 1,
    dilation_d: int | None = 1,
    dilation_h: int | None = 1,
    dilation_w: int | None = 1,
    index: bool | None = False,
    pad_d: int | None = 0,
    pad_h: int | None = 0,
    pad_w: int | None = 0,
    over_d: int | None = 0,
    over_h: int | None = 0,
    over_w: int | None = 0,
    divisor: int | None = 0,
) -> Any:
    """Pooling: the largest, the smallest or the mean of windows of images, in up to three dimensions."""

def max_pool1d(
    input: Any,
    kernel_size: int | collections.abc.Sequence[int],
    stride: int | collections.abc.Sequence[int] | None = None,
    padding: int | collections.abc.Sequence[int] = 0,
    dilation: int | collections.abc.Sequence[int] = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """As ``torch.nn.functional.max_pool1d``; differentiable."""

def max_pool2d(
    input: Any,
    kernel_size: int | collections.abc.Sequence[int],
    stride: int | collections.abc.Sequence[int] | None = None,
    padding: int | collections.abc.Sequence[int] = 0,
    dilation: int | collections.abc.Sequence[int] = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """As ``torch.nn.functional.max_pool2d``; differentiable."""

def max_pool3d(
    input: Any,
    kernel_size: int | collections.abc.Sequence[int],
    stride: int | collections.abc.Sequence[int] | None = None,
    padding: int | collections.abc.Sequence[int] = 0,
    dilation: int | collections.abc.Sequence[int] = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """As ``torch.nn.functional.max_pool3d``; differentiable."""

def avg_pool1d(
    input: Any,
    kernel_size: int | collections.abc.Sequence[int],
    stride: int | collections.abc.Sequence[int] | None = None,
    padding: int | collections.abc.Sequence[int] = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """As ``torch.nn.functional.avg_pool1d``; differentiable."""

def avg_pool2d(
    input: Any,
    kernel_size: int | collections.abc.Sequence[int],
    stride: int | collections.abc.Sequence[int] | None = None,
    padding: int | collections.abc.Sequence[int] = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """As ``torch.nn.functional.avg_pool2d``; differentiable."""

def avg_pool3d(
    input: Any,
    kernel_size: int | collections.abc.Sequence[int],
    stride: int | collections.abc.Sequence[int] | None = None,
    padding: int | collections.abc.Sequence[int] = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """As ``torch.nn.functional.avg_pool3d``; differentiable."""

def pool_backward(
    x: Array,
    dy: Array,
    /,
    *,
    out: Array | tuple[Array, ...] | None = None,
    stream: Any = None,
    mode: str | None = "max",
    include_pad: bool | None = True,
    kernel_d: int | None = 1,
    kernel_h: int | None = 1,
    kernel_w: int | None = 1,
    stride_d: int | None = 1,
    stride_h: int | None = 1,
    stride_w: int | None = 1,
    dilation_d: int | None = 1,
    dilation_h: int | None = 1,
    dilation_w: int | None = 1,
    pad_d: int | None = 0,
    pad_h: int | None = 0,
    pad_w: int | None = 0,
    over_d: int | None = 0,
    over_h: int | None = 0,
    over_w: int | None = 0,
    divisor: int | None = 0,
    index: Array | None = None,
) -> Any:
    """The gradient of `pool`: each pixel sums what arrives for the windows that it is in."""

def quantise_expert_rows(
    x: Array,
    smooth: Array,
    expert: Array,
    /,
    *,
    out: Array | tuple[Array, ...] | None = None,
    stream: Any = None,
    quant: str | None = "row",
    slots_first: bool | None = False,
    out_dtype: Any | None = None,
    scale: Array | float | None = None,
) -> Any:
    """Rows of tokens rounded to 8 bits, once for each expert that a token goes to."""

def quantise_rows(
    x: Array,
    /,
    *,
    out: Array | tuple[Array, ...] | None = None,
    stream: Any = None,
    quant: str | None = "row",
    out_dtype: Any | None = None,
    smooth: Array | None = None,
    scale: Array | float | None = None,
) -> Any:
    """Rows rounded to 8 bits: y = x · smooth / scale."""

def reduction(
    x: Array,
    /,
    *,
    out: Array | tuple[Array, ...] | None = None,
    stream: Any = None,
    sum: bool | None = False,
    mean: bool | None = False,
    norm: bool | None = False,
    prod: bool | None = False,
    max: bool | None = False,
    min: bool | None = False,
    absmax: bool | None = False,
    argmax: bool | None = False,
    argmin: bool | None = False,
    out_dtype: Any | None = None,
) -> Any:
    """Reductions: sums, means, products, L2 norms, the largest and the smallest with their places."""

def reduce(
    x: Any,
    ops: str = "sum",
    dim: int | collections.abc.Sequence[int] | None = None,
    keepdim: bool = False,
    dtype: Any = None,
) -> Any:
    """Reduce an array over the axes `dim`, or over all."""

def reduction_backward(
    x: Array,
    /,
    *,
    out: Array | tuple[Array, ...] | None = None,
    stream: Any = None,
    d_sum: Array | None = None,
    d_mean: Array | None = None,
    d_norm: Array | None = None,
    norm: Array | None = None,
    d_max: Array | None = None,
    max_at: Array | None = None,
    d_min: Array | None = None,
    min_at: Array | None = None,
) -> Any:
    """The gradient of `reduction`: of sums, means, L2 norms, the largest and the smallest."""

def rms_norm(
    x: Array,
    /,
    *,
    out: Array | tuple[Array, ...] | None = None,
    stream: Any = None,
    quant: str | None = "",
    statistics: bool | None = False,
    out_dtype: Any | None = None,
    w: Array | None = None,
    residual: Array | None = None,
    smooth: Array | None = None,
    scale: Array | float | None = None,
    eps: float | None = None,
    offset: float | None = None,
) -> Any:
    """RMS norm (Zhang and Sennrich, arXiv:1910.07467) of rows, with a residual added before it."""

def rms_norm_backward(
    x: Array,
    dy: Array,
    /,
    *,
    out: Array | tuple[Array, ...] | None = None,
    stream: Any = None,
    w_dtype: Any | None = None,
    w: Array | None = None,
    residual: Array | None = None,
    dtotal: Array | None = None,
    eps: float | None = None,
    offset: float | None = None,
) -> Any:
    """Gradients of `rms_norm`: dx, which is the residual's too, and dw."""

def rotary(
    q: Array,
    k: Array,
    cos: Array,
    sin: Array,
    /,
    *,
    out: Array | tuple[Array, ...] | None = None,
    stream: Any = None,
    form: str | None = "half",
    inverse: bool | None = False,
    positions: Array | None = None,
) -> Any:
    """Rotary embedding (Su et al., arXiv:2104.09864) of q and k at once."""

def rotary_in_place(
    q: Array,
    k: Array,
    cos: Array,
    sin: Array,
    /,
    *,
    out: Array | tuple[Array, ...] | None = None,
    stream: Any = None,
    form: str | None = "half",
    inverse: bool | None = False,
    positions: Array | None = None,
) -> Any:
    """Rotary embedding of q and k where they lie: `rotary` without gradients, which writes nothing but
    what turns."""

def rotary_paged(
    q: Array,
    k: Array,
    v: Array,
    cos: Array,
    sin: Array,
    key_cache: Array,
    value_cache: Array,
    slots: Array,
    /,
    *,
    out: Array | tuple[Array, ...] | None = None,
    stream: Any = None,
    form: str | None = "half",
    positions: Array | None = None,
    k_scale: Array | float | None = None,
    v_scale: Array | float | None = None,
) -> Any:
    """Rotary embedding of q, where it lies, and of k, which goes with v into the pages of a cache."""

def softmax(
    x: Array,
    /,
    *,
    out: Array | tuple[Array, ...] | None = None,
    stream: Any = None,
    out_dtype: Any | None = None,
    scale: float | None = None,
) -> Any:
    """Softmax of rows: y = exp(scale · x) / sum(exp(scale · x))."""

def softmax_backward(
    y: Array,
    dy: Array,
    /,
    *,
    out: Array | tuple[Array, ...] | None = None,
    stream: Any = None,
    out_dtype: Any | None = None,
    scale: float | None = None,
) -> Any:
    """Gradient of `softmax`, from its result: dx = scale · (dy - sum(dy · y)) · y."""

def sort_by_expert(
    ids: Array,
    /,
    *,
    out: Array | tuple[Array, ...] | None = None,
    stream: Any = None,
    experts: int | None = 0,
    block: int | None = 1,
    capacity: int | None = 0,
    expert_map: Array | None = None,
    weights: Array | None = None,
) -> Any:
    """Rows in the order of their experts, as maps: no row is moved."""

def sorted_routing(
    logits: Array,
    /,
    *,
    out: Array | tuple[Array, ...] | None = None,
    stream: Any = None,
    k: int | None = 0,
    scoring: str | None = "softmax",
    renormalize: bool | None = False,
    n_group: int | None = 1,
    topk_group: int | None = 1,
    group_score: str | None = "top2",
    bias: Array | None = None,
    routed_scaling_factor: float | None = None,
) -> Any:
    """`topk_routing` and `sort_by_expert` of a few tokens, in one launch of one workgroup."""

def strided_copy(
    x: Array,
    /,
    *,
    out: Array | tuple[Array, ...] | None = None,
    stream: Any = None,
    out_dtype: Any | None = None,
    scale: Array | float | None = None,
) -> Any:
    """An array with any strides, copied into a contiguous one, perhaps in another element type."""

def permute(
    x: Any,
    dims: collections.abc.Sequence[int],
    *,
    out_dtype: Any = None,
) -> Any:
    """The dimensions of x in the order `dims`, contiguous: ``x.permute(dims).contiguous()``."""

def batched_transpose(
    x: Any,
    *,
    out_dtype: Any = None,
) -> Any:
    """x [..., rows, columns] as [..., columns, rows], contiguous."""

def cast(
    x: Any,
    dtype: Any,
    *,
    scale: Any = None,
) -> Any:
    """x in another element type, its dimensions in the order in which x has them in memory."""

def sum_of_experts(
    rows: Array,
    places: Array,
    /,
    *,
    out: Array | tuple[Array, ...] | None = None,
    stream: Any = None,
    out_dtype: Any | None = None,
    weights: Array | None = None,
    shared: Array | None = None,
    routed_scaling_factor: float | None = None,
) -> Any:
    """For each token, the weighted sum of its experts' rows: what ends a mixture of experts."""

def sum_of_experts_backward(
    rows: Array,
    places: Array,
    dy: Array,
    /,
    *,
    out: Array | tuple[Array, ...] | None = None,
    stream: Any = None,
    weight_dtype: Any | None = None,
    weights: Array | None = None,
    routed_scaling_factor: float | None = None,
) -> Any:
    """Gradients of `sum_of_experts`: of the rows, and of the routing's weights."""

def take_rows(
    x: Array,
    order: Array,
    /,
    *,
    out: Array | tuple[Array, ...] | None = None,
    stream: Any = None,
    per_row: int | None = 1,
    places: Array | None = None,
) -> Any:
    """Rows by a map: y[i] = x[order[i] // per_row]; zeros where the map means no row of x."""

def topk(
    x: Array,
    /,
    *,
    out: Array | tuple[Array, ...] | None = None,
    stream: Any = None,
    k: int | None = 0,
    index_dtype: Any | None = None,
) -> Any:
    """The k largest of each row, the largest first, and where they are."""

def topk_routing(
    logits: Array,
    /,
    *,
    out: Array | tuple[Array, ...] | None = None,
    stream: Any = None,
    k: int | None = 0,
    scoring: str | None = "softmax",
    renormalize: bool | None = False,
    n_group: int | None = 1,
    topk_group: int | None = 1,
    group_score: str | None = "top2",
    bias: Array | None = None,
    routed_scaling_factor: float | None = None,
) -> Any:
    """The k best experts of each token, with their weights."""

def topk_routing_backward(
    logits: Array,
    ids: Array,
    dweights: Array,
    /,
    *,
    out: Array | tuple[Array, ...] | None = None,
    stream: Any = None,
    scoring: str | None = "softmax",
    renormalize: bool | None = False,
    routed_scaling_factor: float | None = None,
) -> Any:
    """Gradients of `topk_routing`: of the logits, from those of the weights. Choosing has none."""
