#include "lib/nic/frame_stream.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include "lib/base/file_descriptor.h"

namespace baton::verbs::soft {
namespace {

// Has frames to send, one for each batch, to a peer that has read everything before each.
class EagerPeer final : public FrameEndpoint {
 public:
  EagerPeer() {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    stream.Open(FileDescriptor(ends[0]));
    reader_.Reset(ends[1]);
  }

  bool NextFrame(OutFrame* frame) override {
    in_batch_ = !in_batch_;
    if (!in_batch_ || sent == kFrames) return false;
    uint8_t bytes[kBytes];
    while (recv(reader_.get(), bytes, sizeof(bytes), MSG_DONTWAIT) > 0) {
    }
    frame->Begin(FrameType::kReadResponse, 0, sent++);
    frame->source = PayloadSource::kResponse;
    frame->payload_size = kBytes;
    return true;
  }
  int GatherPayload(const OutFrame&, uint32_t skip, iovec* iovecs, int) override {
    iovecs[0] = {payload_ + skip, kBytes - skip};
    return 1;
  }
  bool OnFrame(const FrameHeader&, const uint8_t*) override { return false; }
  int PayloadTarget(uint32_t, uint32_t, iovec*, int) override { return 0; }
  bool OnFrameEnd() override { return false; }

  static constexpr uint32_t kBytes = 64 << 10;
  static constexpr uint32_t kFrames = 100;
  FrameStream stream{this};
  uint32_t sent = 0;

 private:
  uint8_t payload_[kBytes] = {};
  FileDescriptor reader_;
  bool in_batch_ = false;
};

TEST(FrameStreamTest, shouldLetOthersHaveTheirTurnHoweverFastItsPeerReads) {
  EagerPeer peer;
  for (uint32_t before = 0; peer.sent < EagerPeer::kFrames; before = peer.sent) {
    ASSERT_EQ(peer.stream.Transmit(), StreamState::kOpen);
    ASSERT_FALSE(peer.stream.blocked());
    ASSERT_GT(peer.sent, before);
    ASSERT_LE(peer.sent - before, 16u);  // 1 MiB
    ASSERT_TRUE(peer.stream.has_more() || peer.sent == EagerPeer::kFrames);
  }
  ASSERT_EQ(peer.stream.Transmit(), StreamState::kOpen);
  EXPECT_FALSE(peer.stream.has_more());
}

}  // namespace
}  // namespace baton::verbs::soft
