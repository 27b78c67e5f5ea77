#include "lib/nic/frame_stream.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <cstring>
#include <string>
#include <vector>

#include "lib/base/check.h"
#include "tests/fuzz/program.h"
#include "tests/fuzz/targets.h"
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

}  // namespace

// The stream finds the same frames in whatever pieces their bytes arrive.
void FrameStreamBytes(const uint8_t* data, size_t size) {
  Program program(data, size);
  Collector endpoint(program.Byte());
  int sockets[2];
  BATON_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sockets) == 0);
  FileDescriptor peer(sockets[0]);
  FrameStream stream(&endpoint);
  stream.Open(FileDescriptor(sockets[1]));
  WireFrames frames({});

  std::string all;
  StreamState state = StreamState::kOpen;
  while (!program.empty() && all.size() < (1u << 20) && state == StreamState::kOpen) {
    const std::string bytes =
        program.Flag() ? frames.Next(program) : std::string(program.Block(program.Byte()));
    const size_t piece = 1 + bytes.size() / 16 + program.Take<uint16_t>();
    for (size_t at = 0; at < bytes.size() && state == StreamState::kOpen;) {
      const ssize_t sent = send(peer.get(), bytes.data() + at, std::min(piece, bytes.size() - at),
                                MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent > 0) {
        all.append(bytes, at, static_cast<size_t>(sent));
        at += static_cast<size_t>(sent);
      }
      if (sent < 0 || program.Below(4) != 0) state = stream.Receive();
    }
  }
  peer.Reset();
  for (int i = 0; i < 1000 && state == StreamState::kOpen; ++i) state = stream.Receive();
  bool broken = false;
  const std::vector<Frame> expected = Parse(all, &broken);
  BATON_CHECK(state == (broken ? StreamState::kBroken : StreamState::kEnded));
  BATON_CHECK(endpoint.frames == expected);
}

}  // namespace baton::fuzz
