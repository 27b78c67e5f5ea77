// filed's service in one process with its keeper and a client: what happens where a heap is full.
#include "worker/examples/filed/filed_service.h"

#include <cstdint>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/harness/temp_directory.h"
#include "tests/lib/stream/stream_peer.h"
#include "tests/worker/worker_fixture.h"
#include "worker/examples/filed/filed_protocol.h"
#include "worker/heap.h"

namespace baton::filed {
namespace {

using baton::testing::ScriptedService;
using baton::testing::StreamPeer;
using baton::testing::WorkerFixture;

class FiledServiceTest : public WorkerFixture {
 protected:
  void SetUp() override {
    std::ofstream(directory.File("file")) << "content";
    Start([](v1::ServiceConfig* config) {
      config->set_send_queue_depth(32);
      config->set_receive_queue_depth(32);
      config->set_connection_state_bytes(512);
      config->set_shard_heap_bytes(1 << 20);
      config->set_outside_effects(true);
    });
    service.on_adopt = [this](Shard& shard) { return filed.OnAdopt(shard); };
    service.on_completion = [this](Shard& shard, const Completion& completion) {
      filed.OnCompletion(shard, completion);
    };
    service.on_release = [this](Shard& shard) { filed.OnRelease(shard); };
    service.on_lost = [this](Shard& shard) { filed.OnLost(shard); };
    Worker* const worker = Add(&service, CommitMode::kAfterEachCompletion);
    ASSERT_EQ(filed.Start(*worker), absl::OkStatus());
    peer.on_message = [this](absl::Span<const uint8_t> message) {
      const std::optional<DecodedReply> reply = DecodeReply(message);
      EXPECT_TRUE(reply.has_value());
      if (reply) answers[reply->header.id] = reply->header;
      return true;
    };
    peer.Connect(worker->Listen(fabric.host, 0).value());
    ASSERT_TRUE(UntilWithPeer([&] { return peer.established; }));
  }

  [[nodiscard]] bool UntilWithPeer(const std::function<bool()>& done) {
    return driver::testing::Pump(
        [&] {
          peer.Turn();
          Turn();
        },
        done);
  }
  void Stat(uint64_t id, const std::string& path) {
    DecodedRequest request = {{}, path, {}};
    request.header.kind = static_cast<uint8_t>(RequestKind::kStat);
    request.header.id = id;
    const std::string message = EncodeRequest(request);
    ASSERT_EQ(peer.Send({reinterpret_cast<const uint8_t*>(message.data()), message.size()}),
              absl::OkStatus());
  }
  bool IsAnswered(uint64_t id, ReplyCode code) const {
    const auto found = answers.find(id);
    return found != answers.end() && found->second.code == static_cast<uint8_t>(code) &&
           found->second.kind == static_cast<uint8_t>(RequestKind::kStat);
  }
  // Takes all that is left of the heap.
  std::vector<Buffer> FillHeap() {
    Heap& heap = service.shards.at(0)->heap();
    std::vector<Buffer> taken;
    for (uint64_t bytes = 1 << 20; bytes >= 64;) {
      const auto memory = heap.AllocateScratch(bytes);
      if (memory.ok()) {
        taken.push_back(*memory);
      } else {
        bytes /= 2;
      }
    }
    return taken;
  }

  const harness::TempDirectory directory = harness::TempDirectory::Create().value();
  FiledService filed{{.directory = directory.File("")}};
  ScriptedService& service = NewService();
  StreamPeer peer{fabric};
  std::map<uint64_t, Reply> answers;
};

TEST_F(FiledServiceTest, shouldTellAClientThatTheHeapIsFullWhenItHasMemoryForTheAnswer) {
  const std::vector<Buffer> taken = FillHeap();
  ASSERT_NO_FATAL_FAILURE(Stat(1, "file"));
  ASSERT_TRUE(UntilWithPeer([&] { return service.Count(Completion::Kind::kReceive) == 1; }));
  for (const Buffer& memory : taken) {
    ASSERT_EQ(service.shards.at(0)->heap().Free(memory), absl::OkStatus());
  }
  ASSERT_TRUE(UntilWithPeer([&] { return peer.disconnected || !answers.empty(); }));
  EXPECT_TRUE(IsAnswered(1, ReplyCode::kOverloaded));
  ASSERT_NO_FATAL_FAILURE(Stat(2, "file"));
  ASSERT_TRUE(UntilWithPeer([&] { return peer.disconnected || answers.size() == 2; }));
  EXPECT_TRUE(IsAnswered(2, ReplyCode::kOk));
  EXPECT_FALSE(peer.disconnected);
}

}  // namespace
}  // namespace baton::filed
