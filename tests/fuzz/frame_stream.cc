#include "lib/nic/frame_stream.h"

#include <sys/mman.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/check.h"
#include "lib/nic/memory_wire.h"
#include "tests/fuzz/program.h"
#include "tests/fuzz/wire_frames.h"

namespace baton::fuzz {
namespace {

using verbs::soft::FrameEndpoint;
using verbs::soft::FrameHeader;
using verbs::soft::FrameShape;
using verbs::soft::FrameStream;
using verbs::soft::OutFrame;
using verbs::soft::StreamState;

struct Frame {
  std::string head;  // with its fixed body
  std::string payload;
  bool operator==(const Frame&) const = default;
};

// What the bytes say, read at once.
std::vector<Frame> Parse(std::string_view bytes, bool* broken) {
  std::vector<Frame> frames;
  *broken = false;
  while (bytes.size() >= sizeof(FrameHeader)) {
    FrameHeader header;
    std::memcpy(&header, bytes.data(), sizeof(header));
    FrameShape shape;
    if (verbs::soft::CheckHeader(header, &shape) != nullptr) {
      *broken = true;
      break;
    }
    BATON_CHECK(shape.head_size >= sizeof(header) && shape.head_size <= verbs::soft::kMaxHead);
    BATON_CHECK(uint64_t{shape.head_size} + shape.payload_size == 16 + uint64_t{header.length});
    if (bytes.size() < size_t{shape.head_size} + shape.payload_size) break;
    frames.push_back({std::string(bytes.substr(0, shape.head_size)),
                      std::string(bytes.substr(shape.head_size, shape.payload_size))});
    bytes.remove_prefix(size_t{shape.head_size} + shape.payload_size);
  }
  return frames;
}

class Collector final : public FrameEndpoint {
 public:
  explicit Collector(uint8_t pieces) : pieces_(1 + pieces % 4) {}

  bool NextFrame(OutFrame*) override { return false; }
  int GatherPayload(const OutFrame&, uint32_t, iovec*, int) override { return -1; }

  bool OnFrame(const FrameHeader& header, const uint8_t* body) override {
    BATON_CHECK(!open_);
    open_ = true;
    FrameShape shape;
    BATON_CHECK(verbs::soft::CheckHeader(header, &shape) == nullptr);
    current_.head.assign(reinterpret_cast<const char*>(&header), sizeof(header));
    current_.head.append(reinterpret_cast<const char*>(body), shape.head_size - sizeof(header));
    current_.payload.assign(shape.payload_size, '\0');
    return true;
  }
  // In several pieces, as a scatter-gather list has it.
  int PayloadTarget(uint32_t done, uint32_t length, iovec* iovecs, int max) override {
    BATON_CHECK(open_ && length > 0 && done + length <= current_.payload.size());
    int used = 0;
    while (length > 0) {
      BATON_CHECK(used < max);
      const uint32_t piece = used + 1 == pieces_ ? length : (length + 1) / 2;
      iovecs[used++] = {current_.payload.data() + done, piece};
      done += piece;
      length -= piece;
    }
    return used;
  }
  bool OnFrameEnd() override {
    BATON_CHECK(open_);
    open_ = false;
    frames.push_back(std::move(current_));
    current_ = {};
    return true;
  }

  std::vector<Frame> frames;

 private:
  const int pieces_;
  Frame current_;
  bool open_ = false;
};

// The peer's end of a stream, over its socket or through memory.
class Peer {
 public:
  Peer(FrameStream* stream, bool in_memory) : stream_(stream) {
    int sockets[2];
    BATON_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sockets) == 0);
    socket_.Reset(sockets[0]);
    stream->Open(FileDescriptor(sockets[1]));
    if (!in_memory) return;
    FileDescriptor memfd;
    stream->Share(nic::MemoryWire::Make(&memfd).value());
    stream->SwitchIn();
    wire_ = nic::MemoryWire::Map(memfd.get()).value();
  }

  // Returns how much of it fitted.
  size_t Write(std::string_view bytes) {
    ssize_t written = 0;
    if (wire_ != nullptr) {
      const iovec iovecs[] = {{const_cast<char*>(bytes.data()), bytes.size()}};
      written = wire_->out().Write(iovecs, 1);
    } else {
      written = send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    return written < 0 ? 0 : static_cast<size_t>(written);
  }
  StreamState Receive() {
    bool any = false;
    return wire_ != nullptr ? stream_->ReceiveFromMemory(&any) : stream_->Receive();
  }
  // Ends, and lets the stream read what is left.
  StreamState End() {
    if (wire_ != nullptr) {
      const StreamState state = Receive();
      return state == StreamState::kOpen ? Receive() : state;
    }
    socket_.Reset();
    StreamState state = StreamState::kOpen;
    for (int i = 0; i < 1000 && state == StreamState::kOpen; ++i) state = Receive();
    return state;
  }

 private:
  FrameStream* const stream_;
  FileDescriptor socket_;
  std::unique_ptr<nic::MemoryWire> wire_;
};

// The stream finds the same frames in whatever pieces their bytes arrive.
void Feed(Program program, bool in_memory) {
  Collector endpoint(program.Byte());
  FrameStream stream(&endpoint);
  Peer peer(&stream, in_memory);
  WireFrames frames({});

  std::string all;
  StreamState state = StreamState::kOpen;
  while (!program.empty() && all.size() < (1u << 20) && state == StreamState::kOpen) {
    const std::string bytes =
        program.Flag() ? frames.Next(program) : std::string(program.Block(program.Byte()));
    const size_t piece = 1 + bytes.size() / 16 + program.Take<uint16_t>();
    for (size_t at = 0; at < bytes.size() && state == StreamState::kOpen;) {
      const std::string_view rest = std::string_view(bytes).substr(at, piece);
      const size_t sent = peer.Write(rest);
      all.append(rest.substr(0, sent));
      at += sent;
      if (sent == 0 || program.Below(4) != 0) state = peer.Receive();
    }
  }
  if (state == StreamState::kOpen) state = peer.End();
  bool broken = false;
  const std::vector<Frame> expected = Parse(all, &broken);
  const StreamState whole = in_memory ? StreamState::kOpen : StreamState::kEnded;
  BATON_CHECK(state == (broken ? StreamState::kBroken : whole));
  BATON_CHECK(endpoint.frames == expected);
}

// A peer that stores any positions, and any bytes at any time, ends its own connection at worst.
void Spoil(Program program) {
  Collector endpoint(program.Byte());
  FrameStream stream(&endpoint);
  FileDescriptor memfd;
  stream.Share(nic::MemoryWire::Make(&memfd).value());
  int sockets[2];
  BATON_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sockets) == 0);
  const FileDescriptor peer(sockets[0]);
  stream.Open(FileDescriptor(sockets[1]));
  stream.SwitchOut();
  StreamState state = stream.Transmit();
  stream.SwitchIn();
  void* const at = mmap(nullptr, sizeof(nic::MemoryWireLayout), PROT_READ | PROT_WRITE, MAP_SHARED,
                        memfd.get(), 0);
  BATON_CHECK(at != MAP_FAILED);
  auto* const layout = static_cast<nic::MemoryWireLayout*>(at);
  WireFrames frames({});
  for (int i = 0; i < 200 && !program.empty() && state == StreamState::kOpen; ++i) {
    bool any = false;
    switch (program.Below(6)) {
      case 0:
        layout->from_peer.tail = program.Near(layout->from_peer.tail);
        break;
      case 1:
        layout->to_peer.head = program.Near(layout->to_peer.head);
        break;
      case 2: {
        const std::string bytes = frames.Next(program);
        const size_t start = layout->from_peer.tail % nic::kRingBytes;
        const size_t size = std::min<size_t>(bytes.size(), nic::kRingBytes - start);
        std::memcpy(layout->from_peer_bytes + start, bytes.data(), size);
        layout->from_peer.tail += size;
        break;
      }
      case 3:
        layout->to_peer.sleeping = layout->from_peer.waiting = program.Byte();
        break;
      case 4:
        stream.Enqueue(OutFrame(verbs::soft::FrameType::kDisconnectReply, 0, 0));
        state = stream.Transmit();
        break;
      default:
        state = stream.ReceiveFromMemory(&any);
    }
  }
  munmap(at, sizeof(nic::MemoryWireLayout));
}

}  // namespace

void FrameStreamBytes(const uint8_t* data, size_t size) {
  const Program program(data, size);
  Feed(program, /*in_memory=*/false);
  Feed(program, /*in_memory=*/true);
  Spoil(program);
}

}  // namespace baton::fuzz
