// Frames over one nonblocking TCP socket, and later through a memory that the peer shares. The
// stream cuts incoming bytes into frames and puts their payload where it belongs. It writes frames
// in batches, with their payload straight from registered memory.
#ifndef LIB_NIC_FRAME_STREAM_H_
#define LIB_NIC_FRAME_STREAM_H_

#include <sys/uio.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

#include "lib/base/file_descriptor.h"
#include "lib/nic/memory_wire.h"
#include "lib/nic/wire.h"

namespace baton::verbs::soft {

inline constexpr int kMaxScatterGather = 16;  // of a work request

enum class PayloadSource : uint8_t {
  kNone,
  kRequest,   // scatter-gather list of send work request `index`
  kResponse,  // memory region `rkey`, address `index`
  kOwned,     // `owned`
};

struct OutFrame {
  FrameHeader header = {};
  uint8_t body[sizeof(AtomicHead)] = {};
  uint8_t body_size = 0;
  PayloadSource source = PayloadSource::kNone;
  uint32_t rkey = 0;
  uint32_t payload_size = 0;
  uint64_t index = 0;   // of a request, or the address of a response's payload
  uint64_t offset = 0;  // of the payload in its message
  uint32_t sent = 0;    // bytes already on the wire
  std::unique_ptr<uint8_t[]> owned;

  OutFrame() = default;
  OutFrame(FrameType type, uint8_t flags, uint32_t sequence) { Begin(type, flags, sequence); }

  // Makes this a new frame without body and payload.
  void Begin(FrameType type, uint8_t flags, uint32_t sequence) {
    header = {kWireVersion, static_cast<uint8_t>(type), flags, 0, 0, sequence, 0};
    body_size = 0;
    source = PayloadSource::kNone;
    payload_size = 0;
    sent = 0;
    owned.reset();
  }
  template <typename Body>
  void SetBody(const Body& value) {
    static_assert(sizeof(Body) <= sizeof(body));
    std::memcpy(body, &value, sizeof(Body));
    body_size = sizeof(Body);
  }
  bool request() const {
    return header.type >= static_cast<uint8_t>(FrameType::kSend) &&
           header.type <= static_cast<uint8_t>(FrameType::kFetchAndAdd);
  }
  uint32_t head_size() const { return sizeof(FrameHeader) + body_size; }
  uint32_t size() const { return head_size() + payload_size; }
};

class FrameEndpoint {
 public:
  virtual ~FrameEndpoint() = default;

  // Fills `frame` with the next frame to write, except header.length, which the stream sets.
  // Returns false if there is none now.
  virtual bool NextFrame(OutFrame* frame) = 0;
  // Gives the payload of `frame` from byte `skip` on as iovecs and returns how many. -1: its memory
  // may not be read any more.
  virtual int GatherPayload(const OutFrame& frame, uint32_t skip, iovec* iovecs, int max) = 0;

  // Handles a frame's checked header and collected body. Returns false if the frame breaks the
  // protocol.
  virtual bool OnFrame(const FrameHeader& header, const uint8_t* body) = 0;
  // Gives the places for payload bytes [done, done + length) of the current frame and returns how
  // many. 0: the bytes are dropped.
  virtual int PayloadTarget(uint32_t done, uint32_t length, iovec* iovecs, int max) = 0;
  virtual bool OnFrameEnd() = 0;
};

enum class StreamState : uint8_t { kOpen, kEnded, kBroken };

class FrameStream {
 public:
  explicit FrameStream(FrameEndpoint* endpoint) : endpoint_(endpoint) {}

  void Open(FileDescriptor socket) { socket_ = std::move(socket); }
  void Close() {
    socket_.Reset();
    pending_.clear();
    memory_.reset();
    reads_memory_ = writes_memory_ = switching_ = false;
  }
  int fd() const { return socket_.get(); }
  bool open() const { return static_cast<bool>(socket_); }

  // Reads once from the socket. kEnded: the peer closed; kBroken: the socket failed or the peer
  // broke the protocol, see error(). Either may come with frames left in the memory.
  StreamState Receive();

  // ---- Memory that the peer has, too (wire.md). Each direction changes to it between two frames.
  void Share(std::unique_ptr<nic::MemoryWire> memory) { memory_ = std::move(memory); }
  void Unshare() { memory_.reset(); }
  bool shared() const { return memory_ != nullptr; }
  // Queues kMemoryReady for the socket, behind the pending frames. All later frames go through the
  // memory.
  void SwitchOut();
  bool switched_out() const { return switching_ || writes_memory_; }
  // Called when the peer has sent kMemoryReady, after which only wake-ups come from the socket.
  void SwitchIn() { reads_memory_ = true; }
  bool reads_memory() const { return reads_memory_; }
  // Reads all that is in the memory, once. `*any` is set if there was something.
  StreamState ReceiveFromMemory(bool* any);
  // Unblocks the stream if a full memory blocked it and has room now. Returns whether it did.
  bool UnblockMemory();
  // Returns false if there is something in the memory. Returns true if the peer sends a wake-up
  // when there is.
  bool PrepareToSleep() { return memory_->in().PrepareToSleep(); }
  void Awake() { memory_->in().Awake(); }

  // Queues a frame ahead of all frames that were not generated yet.
  void Enqueue(OutFrame frame) { pending_.push_back(std::move(frame)); }
  // Writes until nothing is left, the socket or the memory is full (then blocked()), or so much is
  // written that others come first (then has_more(): the caller calls again in the next turn).
  StreamState Transmit();
  bool has_more() const { return has_more_; }
  bool blocked() const { return blocked_; }
  bool blocked_by_socket() const { return blocked_ && !writes_memory_; }
  void Unblock() { blocked_ = false; }
  uint64_t bytes_sent() const { return bytes_sent_; }

  // Makes frames of this source no longer read user memory. Drops those that were not begun, and
  // finishes a begun one from a copy, because the peer must see it whole.
  void Detach(PayloadSource source);
  // Finishes all generated frames of this source from copies, begun or not.
  void Keep(PayloadSource source);
  // Drops request frames that were not begun, of any kind.
  void DropRequests();
  // Returns the index of the first request that has a generated and not wholly written frame, or
  // `end` if there is none.
  uint64_t FirstUnwritten(uint64_t end) const;

  std::string_view error() const { return error_; }

 private:
  int PlacesToRead(iovec* iovecs, uint32_t* direct);
  StreamState Take(size_t count, uint32_t direct);
  StreamState TakeWakes();
  bool Consume(const uint8_t* data, size_t size);
  bool CollectHead(const uint8_t** data, size_t* size);
  bool BeginFrame();
  bool EndFrame();
  bool PlaceCopy(const uint8_t* data, uint32_t size);
  void TakeCopy(OutFrame* frame);
  bool AddFrame(const OutFrame& frame, iovec* iovecs, int* used);
  size_t CountKept() const;
  size_t FillBatch(size_t kept);
  bool Write(const iovec* iovecs, int count, size_t total, size_t* written);
  bool WriteToSocket(const iovec* iovecs, int count, size_t* written);
  void FinishSwitch();
  void Wake();
  void FinishBatch(size_t kept, size_t count, size_t written);
  StreamState Fail(std::string_view error) {
    error_ = error;
    return StreamState::kBroken;
  }

  FrameEndpoint* const endpoint_;
  FileDescriptor socket_;
  std::string_view error_;  // static text

  uint8_t head_[kMaxHead];
  uint32_t head_have_ = 0;
  FrameShape shape_;
  uint32_t payload_done_ = 0;
  bool in_payload_ = false;

  std::vector<OutFrame> pending_;  // generated and not wholly written; bounded by one batch
  std::unique_ptr<nic::MemoryWire> memory_;
  bool reads_memory_ = false;
  bool writes_memory_ = false;
  bool switching_ = false;  // kMemoryReady is among pending_
  bool owes_wake_ = false;  // to be sent once kMemoryReady is written
  bool blocked_ = false;
  bool has_more_ = false;
  bool poisoned_ = false;
  uint64_t bytes_sent_ = 0;
};

}  // namespace baton::verbs::soft

#endif  // LIB_NIC_FRAME_STREAM_H_
