#include "lib/driver/request_list.h"

#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"
#include "lib/arena/atomic_access.h"
#include "lib/base/status.h"
#include "lib/verbs/mlx5/posting.h"

namespace baton::driver {
namespace {

using verbs::ScatterGather;
using verbs::SendRequest;

// A scatter-gather list is one message, which has at most 2^31 bytes.
constexpr uint64_t kMaxMessageBytes = uint64_t{1} << 31;

// Kept out of the path of valid requests.
template <typename... Args>
[[gnu::cold, gnu::noinline]] absl::Status InvalidRequest(Args... args) {
  return absl::InvalidArgumentError(absl::StrCat(args...));
}

// Every request that is copied passes these checks. `request`: a WorkRequest, or the Head of one.
template <typename Request>
[[gnu::always_inline]] inline absl::Status CheckHead(const Request& request, bool receive,
                                                     const RequestLimits& limits) {
  if (request.opcode >= verbs::kOpcodeCount || (receive && request.opcode != 0)) {
    return InvalidRequest("opcode: ", static_cast<int>(request.opcode),
                          " is not one of this queue");
  }
  if (!receive && (limits.missing_opcodes >> request.opcode & 1) != 0) {
    return InvalidRequest("opcode: the device has no ",
                          View(verbs::OpcodeName(verbs::Opcode(request.opcode))));
  }
  if ((request.flags & ~arena::kRequestFlags) != 0) {
    return InvalidRequest("flags: ", static_cast<int>(request.flags), " has unknown bits");
  }
  if (request.sge_count > arena::kMaxSges) {
    return InvalidRequest("sge_count: ", static_cast<int>(request.sge_count), ", at most ",
                          arena::kMaxSges);
  }
  if (request.one_line != 0 && (request.one_line != 1 || request.sge_count != 1)) {
    return InvalidRequest("one_line: ", static_cast<int>(request.one_line), " of a request with ",
                          static_cast<int>(request.sge_count), " buffers");
  }
  return absl::OkStatus();
}

[[gnu::cold, gnu::noinline]] absl::Status NotWithin(arena::BufferRange range, int i,
                                                    uint64_t buffer_bytes) {
  return InvalidRequest("sges[", i, "]: ", range.length, " bytes at ", range.offset,
                        " are not within the ", buffer_bytes, " bytes of the buffers");
}

[[gnu::always_inline]] inline bool IsWithin(const arena::BufferRange& range,
                                            uint64_t buffer_bytes) {
  return range.offset <= buffer_bytes && range.length <= buffer_bytes - range.offset;
}

// `length`: the sum of all ranges.
[[gnu::always_inline]] inline absl::Status CheckLength(uint64_t length, bool receive,
                                                       const RequestLimits& limits) {
  if (length > kMaxMessageBytes) return InvalidRequest("sges: ", length, " bytes in one message");
  if (!receive && limits.max_message_bytes != 0 && length > limits.max_message_bytes) {
    return InvalidRequest("sges: ", length, " bytes in one message, the device sends at most ",
                          limits.max_message_bytes);
  }
  return absl::OkStatus();
}

absl::Status CheckAtomic(uint8_t sge_count, uint64_t length, uint64_t remote_address) {
  if (length != 8 || sge_count != 1) return InvalidRequest("sges: an atomic needs one of 8 bytes");
  if (remote_address % 8 != 0) {
    return InvalidRequest("remote_address: ", remote_address, " of an atomic is not aligned");
  }
  return absl::OkStatus();
}

// Requests come from the cache of the worker's processor, so several are fetched at once. They are
// fetched for writing although the driver only reads them: the worker gets a line that nobody
// shares back at once, for its next request.
constexpr uint64_t kFetchAhead = 4;
void FetchRequest(const arena::WorkRequest& request, bool both_lines) {
  arena::FetchToWrite(&request);
  if (both_lines) arena::FetchToWrite(&request.sges);
}

arena::BufferRange Copy(const arena::BufferRange& shared) {
  return {arena::LoadRelaxed(shared.offset), arena::LoadRelaxed(shared.length), 0};
}

// The requests of one queue of a connection in the worker's log.
template <bool kReceive>
class RequestsInLog {
 public:
  static constexpr auto kDirection =
      kReceive ? arena::Direction::kReceive : arena::Direction::kSend;

  RequestsInLog(const arena::Arena& arena, uint32_t connection, uint32_t generation)
      : log_(kReceive ? &arena.receive_request(connection, 0) : &arena.send_request(connection, 0)),
        mask_(2 * uint64_t{kReceive ? arena.shape().receive_queue_depth
                                    : arena.shape().send_queue_depth} -
              1),
        queue_(arena::PackWrId(connection, generation, kDirection, 0)) {}

  const arena::WorkRequest& at(uint64_t sequence) const { return log_[sequence & mask_]; }
  uint64_t wr_id(uint64_t sequence) const { return queue_ | arena::WrIdSequence(sequence); }
  void FetchFirst(uint64_t from, uint64_t to) const {
    for (uint64_t i = from; i < std::min(to, from + kFetchAhead); ++i) FetchRequest(at(i), false);
  }
  // `both_lines`: the last request needed both. The next ones are most often like it.
  void FetchNext(uint64_t sequence, uint64_t to, bool both_lines) const {
    if (sequence + kFetchAhead < to) FetchRequest(at(sequence + kFetchAhead), both_lines);
  }
  [[gnu::cold, gnu::noinline]] absl::Status Wrong(uint64_t sequence,
                                                  const absl::Status& why) const {
    return InvalidRequest("connection ", arena::WrIdConnection(queue_),
                          kReceive ? " receive " : " send ", sequence, ": ", why.message());
  }

 private:
  const arena::WorkRequest* const log_;
  const uint64_t mask_;
  const uint64_t queue_;
};

// The first word of a plain request: it has one buffer, which is in the first line, and only flags
// and an opcode that exist.
constexpr uint32_t kPlainMask =
    arena::FourBytes(static_cast<uint8_t>(~(verbs::kOpcodeCount - 1)),
                     static_cast<uint8_t>(~arena::kRequestFlags), 0xff, 0xff);
constexpr uint8_t kOneBuffer = 1, kInOneLine = 1;
constexpr uint32_t kPlainHead = arena::FourBytes(0, 0, kOneBuffer, kInOneLine);
static_assert(std::has_single_bit(verbs::kOpcodeCount));
static_assert(offsetof(arena::WorkRequest, flags) == 1 &&
              offsetof(arena::WorkRequest, sge_count) == 2 &&
              offsetof(arena::WorkRequest, one_line) == 3);

}  // namespace

RequestLimits LimitsOf(const arena::Arena& arena) {
  const arena::DriverMemoryHeader& header = arena.header();
  return {arena.shape().buffer_bytes, header.max_message_bytes, header.missing_opcodes};
}

// The first fields of a request. Each is read once.
struct RequestList::Head {
  explicit Head(const arena::WorkRequest& shared)
      : opcode(arena::LoadRelaxed(shared.opcode)),
        flags(arena::LoadRelaxed(shared.flags)),
        sge_count(arena::LoadRelaxed(shared.sge_count)),
        one_line(arena::LoadRelaxed(shared.one_line)) {}

  uint8_t opcode;
  uint8_t flags;
  uint8_t sge_count;
  uint8_t one_line;
};

absl::Status CheckRequest(const arena::WorkRequest& request, bool receive,
                          const RequestLimits& limits) {
  BATON_RETURN_IF_ERROR(CheckHead(request, receive, limits));
  uint64_t length = 0;
  for (int i = 0; i < request.sge_count; ++i) {
    const arena::BufferRange& range = arena::RangeOf(request, static_cast<uint32_t>(i));
    if (!IsWithin(range, limits.buffer_bytes)) return NotWithin(range, i, limits.buffer_bytes);
    length += range.length;
  }
  BATON_RETURN_IF_ERROR(CheckLength(length, receive, limits));
  if (receive || !IsAtomic(verbs::Opcode(request.opcode))) return absl::OkStatus();
  return CheckAtomic(request.sge_count, length, request.remote_address);
}

RequestList::RequestList(const arena::Arena& arena, uint32_t lkey, size_t capacity)
    : arena_(&arena),
      limits_(LimitsOf(arena)),
      base_(reinterpret_cast<uint64_t>(arena.buffers())),
      lkey_(lkey),
      max_inline_bytes_(arena.shape().max_inline_bytes),
      plain_(PlainRequestsOf(limits_, max_inline_bytes_)),
      sends_(capacity),
      receives_(capacity),
      sges_(capacity * arena::kMaxSges) {
  SetShard(kAnyShard);
}

void RequestList::SetShard(uint32_t shard) {
  shard_ = shard;
  usable_ = shard == kAnyShard ? arena::UsableBuffers{limits_.buffer_bytes, limits_.buffer_bytes, 0}
                               : arena::UsableBuffersOf(arena_->shape(), shard);
}

[[gnu::cold, gnu::noinline]] absl::Status RequestList::NotUsable(const arena::BufferRange& range,
                                                                 int i) const {
  if (!IsWithin(range, limits_.buffer_bytes)) return NotWithin(range, i, limits_.buffer_bytes);
  return InvalidRequest("sges[", i, "]: ", range.length, " bytes at ", range.offset,
                        " are neither within the ", usable_.shared_bytes,
                        " bytes that all shards share nor within the heap of shard ", shard_);
}

// Copies a range that is not within the usable buffers. `may_be_region`: the device only reads it.
[[gnu::cold, gnu::noinline]] absl::Status RequestList::CopyRegion(arena::BufferRange range, int i,
                                                                  bool may_be_region) {
  const uint32_t region = arena::RegionOf(range.offset);
  if (region == 0) return NotUsable(range, i);
  if (!may_be_region) {
    return InvalidRequest("sges[", i, "]: region ", region,
                          " is for sends; what is received or read goes to the buffers");
  }
  const arena::RegionRecord& record = arena_->region(region);
  const uint64_t from = range.offset - arena::RegionOffset(region);
  if (!arena_->HasRegionWith(range)) {
    return InvalidRequest("sges[", i, "]: ", range.length, " bytes at ", from,
                          " are not within the ", arena::LoadRelaxed(record.length),
                          " bytes of region ", region);
  }
  sges_[sge_count_ + static_cast<size_t>(i)] = {record.address + from, range.length, record.lkey};
  return absl::OkStatus();
}

// Returns whether one of the ranges that were copied last is a region's.
bool RequestList::HasRegions(int sge_count) const {
  for (int i = 0; i < sge_count; ++i) {
    if (sges_[sge_count_ + static_cast<size_t>(i)].lkey != lkey_) return true;
  }
  return false;
}

[[gnu::always_inline]] inline absl::Status RequestList::CopyRange(const arena::BufferRange& shared,
                                                                  int i, bool may_be_region,
                                                                  uint64_t* length) {
  const arena::BufferRange range = Copy(shared);
  *length += range.length;
  if (!usable_.Has(range.offset, range.length)) [[unlikely]] {
    return CopyRegion(range, i, may_be_region);
  }
  static_assert(offsetof(ScatterGather, length) == 8 && offsetof(ScatterGather, lkey) == 12);
  arena::StorePair<offsetof(ScatterGather, address)>(sges_[sge_count_ + static_cast<size_t>(i)],
                                                     base_ + range.offset,
                                                     arena::TwoFields(range.length, lkey_));
  return absl::OkStatus();
}

[[gnu::always_inline]] inline absl::Status RequestList::CopyRanges(const arena::WorkRequest& shared,
                                                                   const Head& head,
                                                                   bool may_be_regions,
                                                                   uint64_t* length) {
  if (head.one_line != 0) return CopyRange(shared.only, 0, may_be_regions, length);
  for (int i = 0; i < head.sge_count; ++i) {
    BATON_RETURN_IF_ERROR(CopyRange(shared.sges[i], i, may_be_regions, length));
  }
  return absl::OkStatus();
}

[[gnu::always_inline]] inline absl::Status RequestList::CopySend(const arena::WorkRequest& shared,
                                                                 uint64_t wr_id) {
  const Head head(shared);
  BATON_RETURN_IF_ERROR(CheckHead(head, /*receive=*/false, limits_));
  const auto opcode = verbs::Opcode(head.opcode);
  uint64_t length = 0;
  BATON_RETURN_IF_ERROR(CopyRanges(shared, head, !verbs::IsAnswered(opcode), &length));
  BATON_RETURN_IF_ERROR(CheckLength(length, /*receive=*/false, limits_));
  const bool fence = (head.flags & arena::kRequestFence) != 0;
  const bool solicited = (head.flags & arena::kRequestSolicited) != 0;
  // A native worker's process has not mapped the regions, so it cannot copy from them.
  const bool inline_data = max_inline_bytes_ > 0 && length <= max_inline_bytes_ &&
                           !verbs::IsAnswered(opcode) && !HasRegions(head.sge_count);
  const uint64_t remote_address = arena::LoadRelaxed(shared.remote_address);
  SendRequest& to = sends_[send_count_];
  static_assert(offsetof(SendRequest, opcode) == 8 && offsetof(SendRequest, fence) == 9 &&
                offsetof(SendRequest, solicited) == 10 && offsetof(SendRequest, inline_data) == 11);
  arena::StorePair<offsetof(SendRequest, wr_id)>(
      to, wr_id,
      arena::TwoFields(arena::FourBytes(head.opcode, fence, solicited, inline_data),
                       arena::LoadRelaxed(shared.immediate)));
  arena::StorePair<offsetof(SendRequest, remote_address)>(
      to, remote_address,
      arena::TwoFields(arena::LoadRelaxed(shared.rkey),
                       arena::LoadRelaxed(shared.invalidate_rkey)));
  to.sges = {sges_.data() + sge_count_, head.sge_count};
  if (IsAtomic(opcode)) {
    BATON_RETURN_IF_ERROR(CheckAtomic(head.sge_count, length, remote_address));
    to.compare_add = arena::LoadRelaxed(shared.compare_add);
    to.swap = arena::LoadRelaxed(shared.swap);
  }
  sge_count_ += head.sge_count;
  send_bytes_ += length;
  ++send_count_;
  return absl::OkStatus();
}

[[gnu::always_inline]] inline absl::Status RequestList::CopyReceive(
    const arena::WorkRequest& shared, uint64_t wr_id) {
  const Head head(shared);
  BATON_RETURN_IF_ERROR(CheckHead(head, /*receive=*/true, limits_));
  uint64_t length = 0;
  BATON_RETURN_IF_ERROR(CopyRanges(shared, head, /*may_be_regions=*/false, &length));
  BATON_RETURN_IF_ERROR(CheckLength(length, /*receive=*/true, limits_));
  receives_[receive_count_++] = {wr_id, {sges_.data() + sge_count_, head.sge_count}};
  sge_count_ += head.sge_count;
  return absl::OkStatus();
}

absl::Status RequestList::AddSend(const arena::WorkRequest& shared, uint64_t wr_id) {
  return CopySend(shared, wr_id);
}

absl::Status RequestList::AddReceive(const arena::WorkRequest& shared, uint64_t wr_id) {
  return CopyReceive(shared, wr_id);
}

template <bool kReceive>
absl::Status RequestList::Add(uint32_t connection, uint32_t generation, uint64_t from,
                              uint64_t to) {
  const RequestsInLog<kReceive> log(*arena_, connection, generation);
  log.FetchFirst(from, to);
  size_t buffers = 0;
  for (uint64_t sequence = from; sequence < to; ++sequence) {
    log.FetchNext(sequence, to, buffers > 1);
    const size_t buffers_before = sge_count_;
    const absl::Status copied = kReceive ? CopyReceive(log.at(sequence), log.wr_id(sequence))
                                         : CopySend(log.at(sequence), log.wr_id(sequence));
    if (!copied.ok()) [[unlikely]]
      return log.Wrong(sequence, copied);
    buffers = sge_count_ - buffers_before;
  }
  return absl::OkStatus();
}

// A request for SendQueue::AddPlain. Each field is read at most once.
struct RequestList::PlainSend {
  const arena::WorkRequest* shared;
  uint64_t id;
  uint32_t head;

  uint64_t wr_id() const { return id; }
  verbs::Opcode opcode() const { return verbs::Opcode(head % verbs::kOpcodeCount); }
  bool fence() const { return (head >> 8 & arena::kRequestFence) != 0; }
  bool solicited() const { return (head >> 8 & arena::kRequestSolicited) != 0; }
  uint32_t immediate() const { return arena::LoadRelaxed(shared->immediate); }
  uint64_t remote_address() const { return arena::LoadRelaxed(shared->remote_address); }
  uint32_t rkey() const { return arena::LoadRelaxed(shared->rkey); }
  uint32_t invalidate_rkey() const { return arena::LoadRelaxed(shared->invalidate_rkey); }
};

RequestList::PlainRequests RequestList::PlainRequestsOf(const RequestLimits& limits,
                                                        uint32_t max_inline_bytes) {
  PlainRequests plain;
  for (uint8_t i = 0; i < verbs::kOpcodeCount; ++i) {
    const bool missing = (limits.missing_opcodes >> i & 1) != 0;
    if (!missing && !verbs::IsAnswered(verbs::Opcode(i))) plain.opcodes |= 1u << i;
  }
  plain.least_send_bytes = max_inline_bytes + 1;
  plain.most_bytes = kMaxMessageBytes - 1;
  plain.most_send_bytes = limits.max_message_bytes == 0
                              ? plain.most_bytes
                              : std::min(plain.most_bytes, limits.max_message_bytes);
  return plain;
}

// Returns whether the range is within the usable buffers and has from `least` to `most` bytes.
[[gnu::always_inline]] inline bool RequestList::ReadPlainRange(const arena::BufferRange& shared,
                                                               uint64_t least, uint64_t most,
                                                               ScatterGather* sge) const {
  const arena::BufferRange range = Copy(shared);
  *sge = {base_ + range.offset, range.length, lkey_};
  return usable_.Has(range.offset, range.length) && range.length >= least && range.length <= most;
}

RequestList::Written RequestList::WriteOtherSend(const arena::WorkRequest& shared, uint64_t wr_id,
                                                 verbs::mlx5::QueuePair* queue_pair,
                                                 verbs::mlx5::SendQueue::Batch* batch) {
  wrong_ = CopySend(shared, wr_id);
  if (!wrong_.ok()) return Written::kWrong;
  const SendRequest& request = sends_[--send_count_];
  sge_count_ -= request.sges.size();
  const bool may = queue_pair->may_read() || !verbs::IsAnswered(request.opcode);
  return may && queue_pair->sends().Add(request, batch) ? Written::kAll : Written::kRefused;
}

RequestList::Written RequestList::WriteOtherReceive(const arena::WorkRequest& shared,
                                                    uint64_t wr_id,
                                                    verbs::mlx5::QueuePair* queue_pair,
                                                    verbs::mlx5::ReceiveQueue::Batch* batch) {
  wrong_ = CopyReceive(shared, wr_id);
  if (!wrong_.ok()) return Written::kWrong;
  const verbs::ReceiveRequest& request = receives_[--receive_count_];
  sge_count_ -= request.sges.size();
  return queue_pair->receives().Add(request, batch) ? Written::kAll : Written::kRefused;
}

RequestList::Written RequestList::WriteSends(uint32_t connection, uint32_t generation,
                                             uint64_t from, uint64_t to,
                                             verbs::mlx5::QueuePair* queue_pair,
                                             verbs::mlx5::SendQueue::Batch* all) {
  const RequestsInLog<false> log(*arena_, connection, generation);
  const uint64_t bytes_before = send_bytes_;
  uint64_t bytes = 0;
  verbs::mlx5::SendQueue::Batch batch = *all;
  for (uint64_t sequence = from; sequence < to; ++sequence) {
    const arena::WorkRequest& shared = log.at(sequence);
    const uint32_t head = arena::LoadFourBytes(shared.opcode);
    const PlainSend send = {&shared, log.wr_id(sequence), head};
    ScatterGather sge;
    if ((head & kPlainMask) == kPlainHead &&
        (plain_.opcodes >> static_cast<uint8_t>(send.opcode()) & 1) != 0 &&
        ReadPlainRange(shared.only, plain_.least_send_bytes, plain_.most_send_bytes, &sge))
        [[likely]] {
      if (queue_pair->sends().AddPlain(send, sge, &batch)) [[likely]] {
        bytes += sge.length;
        continue;
      }
    }
    const Written other = WriteOtherSend(shared, log.wr_id(sequence), queue_pair, &batch);
    if (other == Written::kAll) continue;
    if (other == Written::kWrong) wrong_ = log.Wrong(sequence, wrong_);
    send_bytes_ = bytes_before;
    return other;
  }
  send_bytes_ += bytes;
  *all = batch;
  return Written::kAll;
}

RequestList::Written RequestList::WriteReceives(uint32_t connection, uint32_t generation,
                                                uint64_t from, uint64_t to,
                                                verbs::mlx5::QueuePair* queue_pair,
                                                verbs::mlx5::ReceiveQueue::Batch* all) {
  const RequestsInLog<true> log(*arena_, connection, generation);
  verbs::mlx5::ReceiveQueue::Batch batch = *all;
  for (uint64_t sequence = from; sequence < to; ++sequence) {
    const arena::WorkRequest& shared = log.at(sequence);
    const uint32_t head = arena::LoadFourBytes(shared.opcode);
    constexpr uint32_t kMask = kPlainMask | 0xff;  // a receive has no other opcode than 0
    ScatterGather sge;
    if ((head & kMask) == kPlainHead && ReadPlainRange(shared.only, 1, plain_.most_bytes, &sge))
        [[likely]] {
      if (queue_pair->receives().AddPlain(log.wr_id(sequence), sge, &batch)) [[likely]]
        continue;
    }
    const Written other = WriteOtherReceive(shared, log.wr_id(sequence), queue_pair, &batch);
    if (other == Written::kAll) continue;
    if (other == Written::kWrong) wrong_ = log.Wrong(sequence, wrong_);
    return other;
  }
  *all = batch;
  return Written::kAll;
}

template absl::Status RequestList::Add<false>(uint32_t, uint32_t, uint64_t, uint64_t);
template absl::Status RequestList::Add<true>(uint32_t, uint32_t, uint64_t, uint64_t);

}  // namespace baton::driver
