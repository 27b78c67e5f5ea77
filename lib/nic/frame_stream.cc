#include "lib/nic/frame_stream.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

namespace baton::verbs::soft {
namespace {

constexpr size_t kReceiveBytes = 128 * 1024;
constexpr size_t kBatchFrames = 32;
constexpr size_t kBatchBytes = 1024 * 1024;  // a batch ends with the frame that exceeds it
// A peer that reads as fast as this side writes never fills its socket. Then it is the turn of
// other connections after so many bytes.
constexpr uint64_t kMostAtOnce = kBatchBytes;
constexpr int kBatchIovecs = kBatchFrames * (2 + kMaxScatterGather);  // below IOV_MAX, 1024
// If at least this much of a payload is missing, it is read into its place and not copied there.
constexpr uint32_t kDirectBytes = 16 * 1024;

// All streams of a thread share these buffers, so an idle connection holds none. Nothing is kept in
// them between calls.
struct Scratch {
  uint8_t received[kReceiveBytes];
  OutFrame frames[kBatchFrames];
  iovec iovecs[kBatchIovecs];
};

Scratch& TheScratch() {
  static thread_local std::unique_ptr<Scratch> scratch = std::make_unique<Scratch>();
  return *scratch;
}

bool IsWakes(const uint8_t* data, size_t size) {
  return std::all_of(data, data + size, [](uint8_t byte) { return byte == kWakeByte; });
}

}  // namespace

// Gives the places for the next read: `*direct` bytes of the payload in progress, and a buffer.
// Returns how many.
int FrameStream::PlacesToRead(iovec* iovecs, uint32_t* direct) {
  int used = 0;
  *direct = in_payload_ ? shape_.payload_size - payload_done_ : 0;
  if (*direct >= kDirectBytes) {
    used = endpoint_->PayloadTarget(payload_done_, *direct, iovecs, kMaxScatterGather);
  }
  if (used == 0) *direct = 0;
  iovecs[used++] = {TheScratch().received, kReceiveBytes};
  return used;
}

StreamState FrameStream::Receive() {
  if (reads_memory_) return TakeWakes();
  iovec iovecs[kMaxScatterGather + 1];
  uint32_t direct = 0;
  const int used = PlacesToRead(iovecs, &direct);
  const ssize_t count = readv(socket_.get(), iovecs, used);
  if (count == 0) return StreamState::kEnded;
  if (count < 0) {
    if (errno == EAGAIN || errno == EINTR) return StreamState::kOpen;
    return Fail(errno == ECONNRESET ? "connection reset by the peer's host" : "cannot receive");
  }
  return Take(static_cast<size_t>(count), direct);
}

// Handles `count` bytes that were read into the places of PlacesToRead().
StreamState FrameStream::Take(size_t count, uint32_t direct) {
  const size_t placed = std::min<size_t>(direct, count);
  payload_done_ += static_cast<uint32_t>(placed);
  if (direct > 0 && payload_done_ == shape_.payload_size && !EndFrame()) {
    return StreamState::kBroken;
  }
  if (!Consume(TheScratch().received, count - placed)) return StreamState::kBroken;
  return StreamState::kOpen;
}

// The buffer is larger than the ring, so one read takes all that was there.
static_assert(kReceiveBytes >= nic::kRingBytes);

StreamState FrameStream::ReceiveFromMemory(bool* any) {
  iovec iovecs[kMaxScatterGather + 1];
  uint32_t direct = 0;
  const int used = PlacesToRead(iovecs, &direct);
  if (!open()) return StreamState::kOpen;
  const ssize_t count = memory_->in().Read(iovecs, used);
  if (count < 0) return Fail("impossible position in the memory");
  if (count == 0) return StreamState::kOpen;
  *any = true;
  if (memory_->in().WriterWaits()) Wake();
  return Take(static_cast<size_t>(count), direct);
}

StreamState FrameStream::TakeWakes() {
  uint8_t* const received = TheScratch().received;
  const ssize_t count = read(socket_.get(), received, kReceiveBytes);
  if (count == 0) return StreamState::kEnded;
  if (count < 0) {
    if (errno == EAGAIN || errno == EINTR) return StreamState::kOpen;
    return Fail("connection reset by the peer's host");
  }
  if (IsWakes(received, static_cast<size_t>(count))) return StreamState::kOpen;
  return Fail("no wake-up behind the last frame");
}

bool FrameStream::Consume(const uint8_t* data, size_t size) {
  const bool from_memory = reads_memory_;
  while (size > 0 && open()) {
    if (reads_memory_ != from_memory) {
      error_ = "no wake-up behind the last frame";
      return IsWakes(data, size);
    }
    if (!in_payload_) {
      if (!CollectHead(&data, &size)) return false;
      continue;
    }
    const uint32_t take =
        static_cast<uint32_t>(std::min<size_t>(size, shape_.payload_size - payload_done_));
    PlaceCopy(data, take);
    data += take;
    size -= take;
    payload_done_ += take;
    if (payload_done_ == shape_.payload_size && !EndFrame()) return false;
  }
  return true;
}

bool FrameStream::CollectHead(const uint8_t** data, size_t* size) {
  const bool have_header = head_have_ >= sizeof(FrameHeader);
  const uint32_t need = have_header ? shape_.head_size : sizeof(FrameHeader);
  const uint32_t take = static_cast<uint32_t>(std::min<size_t>(*size, need - head_have_));
  std::memcpy(head_ + head_have_, *data, take);
  head_have_ += take;
  *data += take;
  *size -= take;
  if (head_have_ < need) return true;
  if (!have_header) {
    FrameHeader header;
    std::memcpy(&header, head_, sizeof(header));
    if (const char* wrong = CheckHeader(header, &shape_); wrong != nullptr) {
      error_ = wrong;
      return false;
    }
    if (shape_.head_size > sizeof(FrameHeader)) return true;
  }
  return BeginFrame();
}

bool FrameStream::BeginFrame() {
  FrameHeader header;
  std::memcpy(&header, head_, sizeof(header));
  head_have_ = 0;
  payload_done_ = 0;
  in_payload_ = true;
  error_ = "frame out of place";
  if (!endpoint_->OnFrame(header, head_ + sizeof(FrameHeader))) return false;
  return shape_.payload_size > 0 || EndFrame();
}

bool FrameStream::EndFrame() {
  in_payload_ = false;
  error_ = "frame out of place";
  return endpoint_->OnFrameEnd();
}

bool FrameStream::PlaceCopy(const uint8_t* data, uint32_t size) {
  iovec iovecs[kMaxScatterGather];
  const int used = endpoint_->PayloadTarget(payload_done_, size, iovecs, kMaxScatterGather);
  for (int i = 0; i < used; ++i) {
    std::memcpy(iovecs[i].iov_base, data, iovecs[i].iov_len);
    data += iovecs[i].iov_len;
  }
  return used > 0;
}

bool FrameStream::AddFrame(const OutFrame& frame, iovec* iovecs, int* used) {
  // Header and body are adjacent in the frame, so they are one iovec.
  static_assert(offsetof(OutFrame, body) == offsetof(OutFrame, header) + sizeof(FrameHeader));
  const uint32_t head = frame.head_size();
  if (frame.sent < head) {
    auto* start = const_cast<uint8_t*>(reinterpret_cast<const uint8_t*>(&frame.header));
    iovecs[(*used)++] = {start + frame.sent, head - frame.sent};
  }
  const uint32_t skip = frame.sent > head ? frame.sent - head : 0;
  if (skip >= frame.payload_size) return true;
  if (frame.source == PayloadSource::kOwned) {
    iovecs[(*used)++] = {frame.owned.get() + skip, frame.payload_size - skip};
    return true;
  }
  const int gathered = endpoint_->GatherPayload(frame, skip, iovecs + *used, kMaxScatterGather);
  if (gathered < 0) return false;
  *used += gathered;
  return true;
}

// Returns how many pending frames are for the next batch. Frames behind kMemoryReady are not for
// the socket.
size_t FrameStream::CountKept() const {
  size_t kept = std::min(pending_.size(), kBatchFrames);
  if (!switching_) return kept;
  for (size_t i = 0; i < kept; ++i) {
    if (pending_[i].header.type == static_cast<uint8_t>(FrameType::kMemoryReady)) return i + 1;
  }
  return kept;
}

void FrameStream::SwitchOut() {
  Enqueue(OutFrame(FrameType::kMemoryReady, 0, 0));
  switching_ = true;
}

void FrameStream::FinishSwitch() {
  const auto ready = [](const OutFrame& frame) {
    return frame.header.type == static_cast<uint8_t>(FrameType::kMemoryReady);
  };
  if (!switching_ || std::any_of(pending_.begin(), pending_.end(), ready)) return;
  switching_ = blocked_ = false;
  writes_memory_ = true;
  if (std::exchange(owes_wake_, false)) Wake();
}

// A socket that is full of wake-ups needs no other one. One that has failed is reported when it is
// read.
void FrameStream::Wake() {
  if (!writes_memory_) {
    owes_wake_ = true;
    return;
  }
  [[maybe_unused]] const ssize_t ignored =
      send(socket_.get(), &kWakeByte, sizeof(kWakeByte), MSG_NOSIGNAL | MSG_DONTWAIT);
}

bool FrameStream::UnblockMemory() {
  if (!blocked_ || !writes_memory_ || !memory_->out().HasRoom()) return false;
  memory_->out().EndWait();
  blocked_ = false;
  return true;
}

size_t FrameStream::FillBatch(size_t kept) {
  Scratch& scratch = TheScratch();
  size_t bytes = 0;
  for (size_t i = 0; i < kept; ++i) bytes += pending_[i].size();
  size_t fresh = 0;
  while (kept == pending_.size() && !switching_ && kept + fresh < kBatchFrames &&
         bytes < kBatchBytes) {
    OutFrame& frame = scratch.frames[fresh];
    if (!endpoint_->NextFrame(&frame)) break;
    frame.header.length = frame.body_size + frame.payload_size;
    bytes += frame.size();
    ++fresh;
  }
  return fresh;
}

StreamState FrameStream::Transmit() {
  Scratch& scratch = TheScratch();
  has_more_ = false;
  if (poisoned_) return Fail("memory was deregistered while it was being sent");
  const uint64_t limit = bytes_sent_ + kMostAtOnce;
  while (open() && !blocked_) {
    if (bytes_sent_ >= limit) {
      has_more_ = true;
      return StreamState::kOpen;
    }
    const size_t kept = CountKept();
    const size_t fresh = FillBatch(kept);
    if (kept + fresh == 0) return StreamState::kOpen;
    int used = 0;
    size_t total = 0;
    for (size_t i = 0; i < kept + fresh; ++i) {
      OutFrame& frame = i < kept ? pending_[i] : scratch.frames[i - kept];
      frame.header.length = frame.body_size + frame.payload_size;
      if (!AddFrame(frame, scratch.iovecs, &used)) {
        return Fail("memory was deregistered while it was being sent");
      }
      total += frame.size() - frame.sent;
    }
    size_t written = 0;
    if (!Write(scratch.iovecs, used, total, &written)) return StreamState::kBroken;
    bytes_sent_ += written;
    FinishBatch(kept, kept + fresh, written);
    FinishSwitch();
  }
  return StreamState::kOpen;
}

// Sets blocked_ if not everything was written. Returns false on failure, see error().
bool FrameStream::Write(const iovec* iovecs, int count, size_t total, size_t* written) {
  if (!writes_memory_) {
    if (!WriteToSocket(iovecs, count, written)) return false;
    blocked_ = *written < total;
    return true;
  }
  nic::RingWriter& out = memory_->out();
  const ssize_t size = out.Write(iovecs, count);
  if (size < 0) {
    error_ = "impossible position in the memory";
    return false;
  }
  *written = static_cast<size_t>(size);
  blocked_ = *written < total && out.PrepareToWait();
  if (*written > 0 && out.ReaderSleeps()) Wake();
  return true;
}

bool FrameStream::WriteToSocket(const iovec* iovecs, int count, size_t* written) {
  msghdr message = {};
  message.msg_iov = const_cast<iovec*>(iovecs);
  message.msg_iovlen = static_cast<size_t>(count);
  const ssize_t size = sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  *written = size < 0 ? 0 : static_cast<size_t>(size);
  // If the peer has ended, Receive() reports it, after what is still to be read.
  if (size >= 0 || errno == EAGAIN || errno == EINTR || errno == EPIPE || errno == ECONNRESET) {
    return true;
  }
  error_ = "cannot send";
  return false;
}

void FrameStream::FinishBatch(size_t kept, size_t count, size_t written) {
  Scratch& scratch = TheScratch();
  size_t done = 0;
  for (; done < count; ++done) {
    OutFrame& frame = done < kept ? pending_[done] : scratch.frames[done - kept];
    const size_t left = frame.size() - frame.sent;
    if (written < left) {
      frame.sent += static_cast<uint32_t>(written);
      break;
    }
    written -= left;
  }
  pending_.erase(pending_.begin(), pending_.begin() + static_cast<ptrdiff_t>(std::min(done, kept)));
  for (size_t i = std::max(done, kept); i < count; ++i) {
    pending_.push_back(std::move(scratch.frames[i - kept]));
  }
}

void FrameStream::TakeCopy(OutFrame* frame) {
  auto copy = std::make_unique<uint8_t[]>(frame->payload_size);
  iovec iovecs[kMaxScatterGather];
  const uint32_t head = frame->head_size();
  const uint32_t skip = frame->sent > head ? frame->sent - head : 0;
  const int used = endpoint_->GatherPayload(*frame, skip, iovecs, kMaxScatterGather);
  if (used < 0) poisoned_ = true;  // the rest of the frame is lost: so is the connection
  uint8_t* to = copy.get() + skip;
  for (int i = 0; i < used; ++i) {
    std::memcpy(to, iovecs[i].iov_base, iovecs[i].iov_len);
    to += iovecs[i].iov_len;
  }
  frame->owned = std::move(copy);
  frame->source = PayloadSource::kOwned;
}

void FrameStream::Detach(PayloadSource source) {
  std::erase_if(pending_, [source](const OutFrame& frame) {
    return frame.sent == 0 && frame.source == source;
  });
  Keep(source);
}

void FrameStream::Keep(PayloadSource source) {
  for (OutFrame& frame : pending_) {
    if (frame.source == source) TakeCopy(&frame);
  }
}

void FrameStream::DropRequests() {
  std::erase_if(pending_, [](const OutFrame& frame) { return frame.sent == 0 && frame.request(); });
}

uint64_t FrameStream::FirstUnwritten(uint64_t end) const {
  for (const OutFrame& frame : pending_) {
    if (frame.request()) end = std::min(end, frame.index);
  }
  return end;
}

}  // namespace baton::verbs::soft
