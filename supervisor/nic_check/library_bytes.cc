#include "supervisor/nic_check/checked_device.h"

#include <endian.h>
#include <infiniband/mlx5dv.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"

namespace baton::nic_check {
namespace {

using verbs::Opcode;
using verbs::ScatterGather;
using verbs::SendRequest;

constexpr int kPosts = 500;
constexpr uint64_t kRoom = 256;  // for a request's buffers, and for the memory that it writes

// A copy of the send queue, into which Baton's driver posts.
class Copy {
 public:
  explicit Copy(const verbs::mlx5::LibraryQueuePair& made)
      : real_(made.sends()),
        bytes_(size_t{real_.slot_count} * verbs::mlx5::kSlotBytes),
        notes_(real_.slot_count),
        sends_({bytes_.data(), &record_, notes_.data(), &cursors_, real_.slot_count}, made.number(),
               made.limits(), &silent_) {}

  absl::Status Post(const SendRequest& request) {
    before_ = sends_.queued();
    cursors_.sent = before_;  // all before it has completed
    size_t posted = 0;
    return sends_.Post({&request, 1}, &posted);
  }
  // Returns whether libmlx5 has posted the same.
  bool Equals(const SendRequest& request, uint64_t length) const {
    if (sends_.queued() != static_cast<uint16_t>(verbs::mlx5::LoadRecord(real_.record))) {
      return false;
    }
    const size_t at = size_t{before_ & (real_.slot_count - 1)} * verbs::mlx5::kSlotBytes;
    mlx5_wqe_ctrl_seg control;
    std::memcpy(&control, bytes_.data() + at, sizeof(control));
    const size_t segments = be32toh(control.qpn_ds) & 0x3f;
    for (size_t i = 0; i < segments * verbs::mlx5::kSegmentBytes; ++i) {
      if (IsPadding(request, length, i)) continue;
      const size_t place = (at + i) % bytes_.size();
      if (bytes_[place] != real_.slots[place]) return false;
    }
    return true;
  }

 private:
  // A fetch-and-add has no value to compare with, so that field is unused. Inline data is padded to
  // a whole segment.
  static bool IsPadding(const SendRequest& request, uint64_t length, size_t at) {
    if (request.opcode == Opcode::kFetchAndAdd) return at >= 40 && at < 48;
    return request.inline_data && at >= 32 + sizeof(mlx5_wqe_inl_data_seg) + length;
  }

  const verbs::mlx5::SendQueueMemory real_;
  std::vector<uint8_t> bytes_;
  std::vector<verbs::mlx5::SendNote> notes_;
  __be32 record_ = 0;
  verbs::mlx5::QueueCursors cursors_;
  SilentDoorbell silent_;
  verbs::mlx5::SendQueue sends_;
  uint16_t before_ = 0;
};

ibv_wr_opcode WorkOf(Opcode opcode) {
  if (opcode == Opcode::kRead) return IBV_WR_RDMA_READ;
  return opcode == Opcode::kFetchAndAdd ? IBV_WR_ATOMIC_FETCH_AND_ADD : IBV_WR_RDMA_WRITE;
}

absl::Status PostByLibrary(ibv_qp* queue_pair, const SendRequest& request) {
  std::vector<ibv_sge> sges;
  for (const ScatterGather& sge : request.sges) sges.push_back({sge.address, sge.length, sge.lkey});
  ibv_send_wr work = {};
  work.wr_id = request.wr_id;
  work.sg_list = sges.data();
  work.num_sge = static_cast<int>(sges.size());
  work.opcode = WorkOf(request.opcode);
  work.send_flags = (request.inline_data ? IBV_SEND_INLINE : 0u) |
                    (request.fence ? IBV_SEND_FENCE : 0u) |
                    (request.solicited ? IBV_SEND_SOLICITED : 0u);
  if (request.opcode == Opcode::kFetchAndAdd) {
    work.wr.atomic = {request.remote_address, request.compare_add, request.swap, request.rkey};
  } else {
    work.wr.rdma = {request.remote_address, request.rkey};
  }
  ibv_send_wr* bad = nullptr;
  const int error = ibv_post_send(queue_pair, &work, &bad);
  return error == 0 ? absl::OkStatus() : ErrnoStatus(error, "ibv_post_send");
}

absl::Status AwaitByLibrary(const CheckedDevice& device, ibv_cq* completions) {
  ibv_wc work = {};
  int count = 0;
  const bool came = device.Eventually([&] {
    count = ibv_poll_cq(completions, 1, &work);
    return count != 0;
  });
  if (came && count == 1 && work.status == IBV_WC_SUCCESS) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("libmlx5's request did not succeed: ", ibv_wc_status_str(work.status)));
}

}  // namespace

absl::StatusOr<std::string> RequestsAreLibrarys(CheckedDevice* device) {
  BATON_ASSIGN_OR_RETURN(const Ends ends, device->Connect(device->domain()));
  Copy copy(*ends.first);
  std::mt19937_64 random(device->options().seed);
  const uint64_t* const word = device->NewWord();
  uint8_t* const local = device->bytes() + 4 * kRoom;  // after all words
  uint8_t* const remote = local + kRoom;
  for (int i = 0; i < kPosts; ++i) {
    constexpr Opcode kOpcodes[] = {Opcode::kWrite, Opcode::kRead, Opcode::kFetchAndAdd};
    SendRequest request = device->AddOne(static_cast<uint64_t>(i), word);
    request.opcode = kOpcodes[random() % std::size(kOpcodes)];
    request.fence = random() % 4 == 0;
    request.solicited = random() % 4 == 0;
    std::vector<ScatterGather> sges;
    uint64_t length = 0;
    if (request.opcode != Opcode::kFetchAndAdd) {
      request.remote_address = reinterpret_cast<uintptr_t>(remote);
      request.inline_data = request.opcode == Opcode::kWrite && random() % 2 == 0;
      for (uint64_t count = random() % (kLimits.scatter_gather + 1); count > 0; --count) {
        const auto bytes = static_cast<uint32_t>(random() % (kLimits.inline_bytes / 3));
        sges.push_back(device->SgeOf(local + length, bytes));
        length += bytes;
      }
      request.sges = sges;
    }
    BATON_RETURN_IF_ERROR(copy.Post(request));
    BATON_RETURN_IF_ERROR(PostByLibrary(ends.first->get(), request));
    if (!copy.Equals(request, length)) {
      return absl::InternalError(absl::StrCat("request ", i, ", a ",
                                              verbs::OpcodeName(request.opcode).data(), " of ",
                                              sges.size(), " buffers, differs"));
    }
    BATON_RETURN_IF_ERROR(AwaitByLibrary(*device, ends.first->completions()));
  }
  return absl::StrCat(kPosts, " random requests are equal, byte for byte");
}

}  // namespace baton::nic_check
