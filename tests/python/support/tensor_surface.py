"""How each attribute of torch.Tensor is judged on a sharded parameter.

- writes: gives the parameter the values that a plain tensor gets, in both views
- random: writes other numbers than a plain tensor gets, in both views
- refuses: raises for all sample arguments that a plain tensor takes
- reads: writes nothing
- not called: a plain tensor of floating-point numbers takes none of the sample arguments
- object protocol: operators that make new tensors, and functions of Python's object model
- attributes: no methods; they are read
- by hand: has a test of its own
"""

JUDGED = {
    "writes": """
        __iadd__ __idiv__ __imod__ __imul__ __ipow__ __isub__ __itruediv__ abs_ absolute_ acos_ acosh_ add_ addmm_
        arccos_ arccosh_ arcsin_ arcsinh_ arctan2_ arctan_ arctanh_ asin_ asinh_ atan2_ atan_ atanh_ ceil_ clamp_
        clamp_max_ clamp_min_ clip_ conj_physical_ copy_ copysign_ cos_ cosh_ deg2rad_ digamma_ div_ divide_ eq_
        erf_ erfc_ erfinv_ exp2_ exp_ expm1_ fill_ fix_ floor_ fmod_ frac_ ge_ greater_ greater_equal_ gt_
        heaviside_ hypot_ i0_ igamma_ igammac_ ldexp_ le_ lerp_ less_ less_equal_ lgamma_ log10_ log1p_ log2_ log_
        logical_and_ logical_not_ logical_or_ logical_xor_ logit_ lt_ masked_fill_ mul_ multiply_ mvlgamma_
        nan_to_num_ ne_ neg_ negative_ nextafter_ not_equal_ polygamma_ pow_ rad2deg_ reciprocal_ relu_ remainder_
        round_ rsqrt_ sgn_ sigmoid_ sign_ sin_ sinc_ sinh_ sqrt_ square_ sub_ subtract_ tan_ tanh_ true_divide_
        trunc_ xlogy_ zero_
    """,
    "writes, refuses some": """
        addcdiv_ addcmul_
    """,
    "random": """
        bernoulli_ cauchy_ exponential_ geometric_ log_normal_ normal_ uniform_
    """,
    "refuses": """
        __setitem__ _conj_physical _lazy_clone _neg_view _to_sparse _to_sparse_bsc _to_sparse_bsr _to_sparse_csc
        _to_sparse_csr addbmm addbmm_ addr_ allclose apply_ argwhere as_strided as_strided_ bernoulli cumprod_
        cumsum_ dense_dim dequantize diagflat fill_diagonal_ floor_divide_ hash_tensor histogram index_add
        index_add_ index_copy index_copy_ index_fill index_fill_ index_put index_put_ is_set_to kron map2_ map_
        masked_scatter masked_scatter_ nonzero numpy put put_ quantile random_ ravel renorm renorm_ resize_
        resize_as_ scatter_ scatter_add_ scatter_reduce scatter_reduce_ set_ share_memory_ slice_inverse sparse_dim
        squeeze_ swapaxes_ swapdims_ t_ to_mkldnn to_sparse to_sparse_bsc to_sparse_bsr to_sparse_coo to_sparse_csc
        to_sparse_csr tolist transpose_ tril_ triu_ unique unique_consecutive unsafe_chunk unsqueeze_
    """,
    "reads": """
        __iand__ __ilshift__ __ior__ __irshift__ __ixor__ _addmm_activation _clear_non_serializable_cached_data
        _fix_weakref _is_view _is_zerotensor _reduce_ex_internal _rev_view_func_unsafe _typed_storage _use_count
        _view_func _view_func_unsafe abs absolute acos acosh add addmm addr adjoint all amax amin aminmax angle any
        arccos arccosh arcsin arcsinh arctan arctan2 arctanh argmax argmin argsort asin asinh atan atan2 atanh
        baddbmm bfloat16 bool broadcast_to byte cdouble ceil cfloat chalf char cholesky_inverse cholesky_solve chunk
        clamp clamp_max clamp_min clip clone conj conj_physical const_data_ptr contiguous copysign corrcoef cos cosh
        count_nonzero cov cpu cummax cummin cumprod cumsum data_ptr deg2rad det detach diag diag_embed diagonal diff
        digamma dim dim_order dist div divide double element_size eq equal erf erfc erfinv exp exp2 expand expand_as
        expm1 fix flip fliplr flipud float float_power floor floor_divide fmax fmin fmod frac frexp ge geqrf
        get_device greater greater_equal gt half hardshrink heaviside histc hsplit hypot i0 igamma igammac index
        inner int inverse is_complex is_conj is_contiguous is_distributed is_floating_point is_inference is_neg
        is_pinned is_same_size is_shared is_signed isclose isfinite isinf isnan isneginf isposinf isreal kthvalue
        ldexp le lerp less less_equal lgamma log log10 log1p log2 log_softmax logaddexp logaddexp2 logcumsumexp
        logdet logical_and logical_not logical_or logical_xor logit logsumexp long lt lu masked_fill matmul
        matrix_exp max maximum mean median min minimum mm mode moveaxis movedim msort mul multiply mvlgamma
        nan_to_num nanmean nanmedian nansum ndimension ne neg negative nelement new new_empty new_empty_strided
        new_ones new_tensor new_zeros nextafter norm not_equal numel permute pinverse polygamma positive pow prod qr
        rad2deg reciprocal relu remainder repeat reshape_as resize_as resolve_conj resolve_neg roll rot90 round
        rsqrt scatter scatter_add select sgn short sigmoid sign signbit sin sinc sinh size slice_scatter slogdet
        softmax sort split sqrt square squeeze std storage storage_offset storage_type stride sub subtract sum
        sum_to_size svd swapaxes swapdims t tan tanh tensor_split tile to to_dense topk trace transpose
        triangular_solve tril triu true_divide trunc type type_as unsafe_split unsqueeze untyped_storage var view_as
        vsplit where xlogy
    """,
    "reads, refuses some": """
        __ifloordiv__ addcdiv addcmul flatten matrix_power nanquantile repeat_interleave reshape unbind view
    """,
    "not called": """
        _autocast_to_full_precision _autocast_to_reduced_precision _coalesced_ _conj _dimI _dimV _dtensor__new__
        _indices _is_all_true _is_any_true _make_subclass _make_wrapper_subclass _nested_tensor_size
        _nested_tensor_storage_offsets _nested_tensor_strides _nnz _philox_normal_ _philox_uniform_
        _sparse_mask_projection _to_dense _values addmv addmv_ as_strided_scatter as_subclass backward baddbmm_
        bincount bitwise_and bitwise_and_ bitwise_left_shift bitwise_left_shift_ bitwise_not bitwise_not_ bitwise_or
        bitwise_or_ bitwise_right_shift bitwise_right_shift_ bitwise_xor bitwise_xor_ bmm ccol_indices cholesky
        coalesce col_indices cross crow_indices cuda diagonal_scatter dot dsplit eig float_power_ gather gcd gcd_
        ger index_reduce index_reduce_ index_select indices int_repr ipu is_coalesced is_nonzero istft item lcm lcm_
        lstsq lu_solve masked_select mtia multinomial mv narrow narrow_copy new_full nonzero_static orgqr ormqr
        outer pin_memory prelu q_per_channel_axis q_per_channel_scales q_per_channel_zero_points q_scale
        q_zero_point qscheme record_stream reinforce resize resize_as_sparse_ retain_grad row_indices select_scatter
        smm solve sparse_mask sparse_resize_ sparse_resize_and_clear_ split_with_sizes sspaddmm stft symeig take
        take_along_dim to_padded_tensor unflatten unfold unsafe_split_with_sizes values vdot xpu
    """,
    "object protocol": """
        __abs__ __add__ __and__ __array__ __array_wrap__ __bool__ __class__ __complex__ __contains__ __deepcopy__
        __delattr__ __delitem__ __dir__ __div__ __dlpack__ __dlpack_device__ __eq__ __float__ __floordiv__
        __format__ __ge__ __getattribute__ __getitem__ __getstate__ __gt__ __hash__ __index__ __init__
        __init_subclass__ __int__ __invert__ __iter__ __le__ __len__ __long__ __lshift__ __lt__ __matmul__ __mod__
        __mul__ __ne__ __neg__ __new__ __nonzero__ __or__ __pos__ __pow__ __radd__ __rand__ __rdiv__ __reduce__
        __reduce_ex__ __repr__ __reversed__ __rfloordiv__ __rlshift__ __rmatmul__ __rmod__ __rmul__ __ror__ __rpow__
        __rrshift__ __rshift__ __rsub__ __rtruediv__ __rxor__ __setattr__ __setstate__ __sizeof__ __str__ __sub__
        __subclasshook__ __torch_dispatch__ __torch_function__ __truediv__ __xor__
    """,
    "attributes": """
        H T __annotations__ __array_priority__ __cuda_array_interface__ __dict__ __dlpack_c_exchange_api__ __doc__
        __module__ __weakref__ _backward_hooks _base _cdata _grad_fn _has_symbolic_sizes_strides
        _post_accumulate_grad_hooks _python_dispatch _version device dtype grad_fn imag is_cpu is_cuda is_ipu
        is_leaf is_maia is_meta is_mkldnn is_mps is_mtia is_nested is_quantized is_sparse is_sparse_csr is_vulkan
        is_xla is_xpu itemsize layout mH mT name nbytes ndim output_nr real retains_grad shape volatile
    """,
    "by hand": """
        requires_grad_ detach_ register_post_accumulate_grad_hook register_hook module_load data grad _grad
        grad_dtype requires_grad
    """,
}

IN_PLACE_OPERATORS = [
    "__iadd__",
    "__iand__",
    "__idiv__",
    "__ifloordiv__",
    "__ilshift__",
    "__imod__",
    "__imul__",
    "__ior__",
    "__ipow__",
    "__irshift__",
    "__isub__",
    "__itruediv__",
    "__ixor__",
    "__setitem__",
]


def judged(judgement):
    """The names that are judged so."""
    return JUDGED[judgement].split()


def called():
    """The names of methods that tests call with sample arguments."""
    uncalled = {"object protocol", "attributes", "by hand"}
    return [name for judgement in JUDGED if judgement not in uncalled for name in judged(judgement)]


def in_place():
    """The names of methods that write to their tensor."""
    return [name for name in called() if name.endswith("_") or name in IN_PLACE_OPERATORS]
