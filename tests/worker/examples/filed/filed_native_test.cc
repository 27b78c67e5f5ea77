// A native filed, whose files the driver holds like those of a brokered one.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/worker/examples/filed/filed_fixture.h"

namespace baton::filed {
namespace {

class FiledNativeTest : public FiledTest {
 protected:
  void ServeNatively() {
    const auto object = harness::Binaries().Find("filed-v1.so");
    ASSERT_OK(object);
    std::vector<std::string> arguments = EnoughOfAll();
    arguments.insert(arguments.end(), {"--native", *object, "--native-workers", "4"});
    for (const std::string& argument :
         {std::string("--socket=unused"),
          absl::StrCat("--listen=", verbs::testing::FabricUnderTest().host, ":0"),
          absl::StrCat("--directory=", Served())}) {
      arguments.push_back("--native-argument=" + argument);
    }
    ASSERT_NO_FATAL_FAILURE(StartCluster(std::move(arguments)));
    ASSERT_OK(cluster_->WaitUntilListening());
    port_ = cluster_->port();
  }

  // Until another worker owns the shard.
  void KillTheOwnerOf(int shard) {
    uint64_t owner = 0;
    ASSERT_OK(harness::WaitUntil(
        "an owner",
        [&] {
          const auto service = cluster_->GetService();
          if (service.ok()) owner = service->shards(shard).owner_worker_id();
          return owner != 0;
        },
        examples::kTimeout));
    ASSERT_OK(cluster_->operators().KillWorker("filed", owner));
    ASSERT_OK(cluster_->WaitUntilGone(owner));
  }
};

TEST_F(FiledNativeTest, shouldFinishAFileThatIsDeletedBeforeItsOwnerDies) {
  constexpr size_t kLargeBytes = 64 << 20;  // more than the client's ring has room for
  WriteFile(Served("deleted"), kLargeBytes, 7);
  const std::string content = harness::ReadFile(Served("deleted"));
  ASSERT_NO_FATAL_FAILURE(ServeNatively());
  const std::unique_ptr<GetClient> client = Connect();
  ASSERT_NE(client, nullptr);
  Answers answers;
  const uint64_t stat = client->Stat("deleted");
  ASSERT_EQ(answers.Await(*client, stat), ReplyCode::kOk);
  const FileInfo info = answers.reply(stat).header.info;
  const uint64_t get = client->Get("deleted", info, 0, info.size);
  while (answers.bytes(get).empty()) ASSERT_OK(client->Turn(answers));
  ExpectHeld(1);
  ASSERT_TRUE(std::filesystem::remove(Served("deleted")));
  for (const int shard : {0, 1}) ASSERT_NO_FATAL_FAILURE(KillTheOwnerOf(shard));
  EXPECT_FALSE(answers.IsAnswered(get));
  EXPECT_EQ(answers.Await(*client, get), ReplyCode::kOk);
  EXPECT_TRUE(answers.bytes(get) == content);
  ExpectHeld(0, {{client.get(), &answers}});
}

}  // namespace
}  // namespace baton::filed
