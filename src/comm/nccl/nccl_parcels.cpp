#include "comm/nccl/nccl_parcels.h"

namespace fsdp::comm {

ncclResult_t exchange_parcels(const NcclLibrary& nccl, ncclComm_t comm, int rank, const Parcels& parcels,
                              cudaStream_t stream) {
  ncclResult_t first_error = nccl.group_start();
  if (first_error != ncclSuccess) return first_error;
  const auto note = [&](ncclResult_t result) {
    if (first_error == ncclSuccess && result != ncclInProgress) first_error = result;
  };
  for (int peer = 0; peer < static_cast<int>(parcels.inputs.size()); ++peer) {
    if (peer == rank) continue;
    const at::Tensor& input = parcels.inputs[static_cast<size_t>(peer)];
    const at::Tensor& output = parcels.outputs[static_cast<size_t>(peer)];
    if (input.numel() > 0) note(nccl.send(input.const_data_ptr(), input.nbytes(), ncclUint8, peer, comm, stream));
    if (output.numel() > 0) note(nccl.recv(output.mutable_data_ptr(), output.nbytes(), ncclUint8, peer, comm, stream));
  }
  const ncclResult_t end = nccl.group_end();
  return first_error == ncclSuccess ? end : first_error;
}

}  // namespace fsdp::comm
