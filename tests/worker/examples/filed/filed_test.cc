// These tests run filed on Baton, on the soft device, and fetch from it: whole trees, parts, files
// that are not to be had, and clients that are wrong.
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/harness/wait_until.h"
#include "tests/worker/examples/filed/filed_fixture.h"

namespace baton::filed {
namespace {

using testing::HasSubstr;

TEST_F(FiledTest, shouldBeFetchedAsItIs) {
  MakeTree();
  ASSERT_NO_FATAL_FAILURE(StartService());
  const GetResult got = Get();
  EXPECT_EQ(got.status, 0) << got.complaints;
  EXPECT_THAT(got.summary, HasSubstr("63 files, "));
  EXPECT_THAT(got.summary, HasSubstr("fetched in"));
  EXPECT_THAT(got.summary, HasSubstr("over one connection"));
  EXPECT_OK(CompareTrees(Served(), Fetched()));
  ExpectNoConnections();
}

TEST_F(FiledTest, shouldServeOneFileAndOneDirectoryOfIt) {
  MakeTree();
  ASSERT_NO_FATAL_FAILURE(StartService());
  EXPECT_EQ(Get({}, "large/2").status, 0);
  EXPECT_TRUE(harness::ReadFile(Fetched("2")) == harness::ReadFile(Served("large/2")));
  std::filesystem::remove_all(Fetched());
  EXPECT_EQ(Get({}, "d1/").status, 0);
  EXPECT_OK(CompareTrees(Served("d1"), Fetched()));
}

TEST_F(FiledTest, shouldServeDirectoriesOfManyEntries) {
  constexpr int kFiles = 1500;
  for (int i = 0; i < kFiles; ++i) {
    std::ofstream(Served(absl::StrCat("file-with-a-longer-name-", i))) << i;
  }
  ASSERT_NO_FATAL_FAILURE(StartService());
  const GetResult got = Get();
  EXPECT_EQ(got.status, 0) << got.complaints;
  EXPECT_THAT(got.summary, HasSubstr(absl::StrCat(kFiles, " files, ")));
  EXPECT_OK(CompareTrees(Served(), Fetched()));
}

TEST_F(FiledTest, shouldServeWithoutIoUringToo) {
  MakeTree();
  arguments_.emplace_back("--no-io-uring");
  ASSERT_NO_FATAL_FAILURE(StartService());
  EXPECT_EQ(Get().status, 0);
  EXPECT_OK(CompareTrees(Served(), Fetched()));
}

TEST_F(FiledTest, shouldServeSeveralClientsAtOnce) {
  MakeTree();
  ASSERT_NO_FATAL_FAILURE(StartService());
  ASSERT_NO_FATAL_FAILURE(StartLoads(4));
  EXPECT_OK(harness::WaitUntil(
      "each client to have the whole tree",
      [&] {
        return std::all_of(loads_.begin(), loads_.end(),
                           [](const auto& load) { return load->failed() || load->rounds() > 0; });
      },
      examples::kTimeout));
  ExpectNothingLost();
  ExpectNoConnections();
}

TEST_F(FiledTest, shouldServeNothingOutsideOfItsDirectory) {
  std::ofstream(temporary_->File("outside")) << "secret";
  std::filesystem::create_symlink("../outside", Served("link"));
  ASSERT_EQ(mkfifo(Served("fifo").c_str(), 0600), 0);
  std::ofstream(Served("a")) << "1";
  ASSERT_NO_FATAL_FAILURE(StartService());
  const std::unique_ptr<GetClient> client = Connect();
  ASSERT_NE(client, nullptr);
  Answers answers;
  FileInfo info = {};
  info.size = 6;
  EXPECT_EQ(answers.Await(*client, client->Stat("link")), ReplyCode::kDenied);
  EXPECT_EQ(answers.Await(*client, client->Stat("fifo")), ReplyCode::kDenied);
  EXPECT_EQ(answers.Await(*client, client->Get("link", info, 0, 6)), ReplyCode::kDenied);
  EXPECT_EQ(answers.Await(*client, client->Get("fifo", info, 0, 6)), ReplyCode::kDenied);
  const uint64_t list = client->List("", "");
  EXPECT_EQ(answers.Await(*client, list), ReplyCode::kOk);
  ASSERT_EQ(answers.reply(list).entries.size(), 1u);
  EXPECT_EQ(answers.reply(list).entries[0].name, "a");
  // This one costs the client its connection.
  client->Stat("../outside");
  absl::Status status;
  while (status.ok()) status = client->Turn(answers);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  ExpectInLog(*worker_, "has no plain path");
}

TEST_F(FiledTest, shouldSayWhyARequestIsNotAnswered) {
  WriteFile(Served("a"), 1000, 1);
  std::filesystem::create_directory(Served("directory"));
  ASSERT_NO_FATAL_FAILURE(StartService());
  const std::unique_ptr<GetClient> client = Connect();
  ASSERT_NE(client, nullptr);
  Answers answers;
  const uint64_t stat = client->Stat("a");
  ASSERT_EQ(answers.Await(*client, stat), ReplyCode::kOk);
  const FileInfo info = answers.reply(stat).header.info;
  EXPECT_EQ(info.size, 1000u);
  EXPECT_EQ(answers.Await(*client, client->Stat("none")), ReplyCode::kNotFound);
  EXPECT_EQ(answers.Await(*client, client->Get("none", info, 0, 1)), ReplyCode::kNotFound);
  EXPECT_EQ(answers.Await(*client, client->List("a", "")), ReplyCode::kWrongType);
  EXPECT_EQ(answers.Await(*client, client->Get("directory", info, 0, 1)), ReplyCode::kWrongType);
  EXPECT_EQ(answers.Await(*client, client->Get("a", info, 1, 1000)), ReplyCode::kInvalid);
  EXPECT_EQ(answers.Await(*client, client->Get("a", info, 2, ~uint64_t{0})), ReplyCode::kInvalid);
  FileInfo other = info;
  ++other.mtime_ns;
  EXPECT_EQ(answers.Await(*client, client->Get("a", other, 0, 1)), ReplyCode::kChanged);
  // And what is right is answered after all of these.
  const uint64_t get = client->Get("a", info, 1, 999);
  EXPECT_EQ(answers.Await(*client, get), ReplyCode::kOk);
  EXPECT_TRUE(answers.bytes(get) == harness::ReadFile(Served("a")).substr(1));
}

TEST_F(FiledTest, shouldCancelWhatIsNotSentYet) {
  WriteFile(Served("large"), 64 << 20, 1);
  ASSERT_NO_FATAL_FAILURE(StartService());
  const std::unique_ptr<GetClient> client = Connect();
  ASSERT_NE(client, nullptr);
  Answers answers;
  const uint64_t stat = client->Stat("large");
  ASSERT_EQ(answers.Await(*client, stat), ReplyCode::kOk);
  const FileInfo info = answers.reply(stat).header.info;
  // The server has them long before it can have sent so much.
  const uint64_t first = client->Get("large", info, 0, info.size);
  const uint64_t second = client->Get("large", info, 0, info.size);
  const uint64_t last = client->Get("large", info, 5, 10);
  client->Cancel(first);
  client->Cancel(second);
  EXPECT_EQ(answers.Await(*client, first), ReplyCode::kCanceled);
  EXPECT_EQ(answers.Await(*client, second), ReplyCode::kCanceled);
  EXPECT_EQ(answers.Await(*client, last), ReplyCode::kOk);
  EXPECT_LT(answers.bytes(first).size(), info.size);
  EXPECT_LT(answers.bytes(second).size(), info.size);
  EXPECT_EQ(answers.bytes(last).size(), 10u);
  ExpectHeld(0, {{client.get(), &answers}});
}

// Such a client is told so, or loses its connection if there is no room to tell it.
TEST_F(FiledTest, shouldRefuseMoreRequestsThanAClientMayHave) {
  WriteFile(Served("large"), 64 << 20, 1);
  WriteFile(Served("small"), 1000, 2);
  ASSERT_NO_FATAL_FAILURE(StartService());
  const std::unique_ptr<GetClient> client = Connect();
  ASSERT_NE(client, nullptr);
  Answers answers;
  const uint64_t stat = client->Stat("large");
  ASSERT_EQ(answers.Await(*client, stat), ReplyCode::kOk);
  const FileInfo info = answers.reply(stat).header.info;
  client->Get("large", info, 0, info.size);
  for (uint32_t i = 0; i < 2 * kMaxRequests; ++i) client->Stat("small");
  absl::Status status;
  while (status.ok() && client->unanswered() > 0 && !answers.Has(ReplyCode::kOverloaded)) {
    status = client->Turn(answers);
  }
  EXPECT_TRUE(answers.Has(ReplyCode::kOverloaded) || absl::IsUnavailable(status)) << status;
  EXPECT_EQ(Get({}, "small").status, 0) << "others are served";
}

TEST_F(FiledTest, shouldGoOnWithAPartThatWasFetchedBefore) {
  WriteFile(Served("large"), 16 << 20, 1);
  WriteFile(Served("small"), 1000, 2);
  ASSERT_NO_FATAL_FAILURE(StartService());
  const auto interrupted = SpawnGet({"--limit-rate", "4194304"});
  ASSERT_NE(interrupted, nullptr);
  ASSERT_OK(harness::WaitUntil("a part of the file", [&] {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(Fetched(), error)) {
      // The other file has a part, too, which comes first in some directories.
      if (entry.path().extension() == ".baton-part" && entry.file_size(error) > 1 << 20)
        return true;
    }
    return false;
  }));
  ASSERT_OK(interrupted->Kill());
  EXPECT_FALSE(std::filesystem::exists(Fetched("large")));
  const GetResult resumed = Get({"--resume"});
  EXPECT_EQ(resumed.status, 0) << resumed.complaints;
  EXPECT_THAT(resumed.summary, HasSubstr("and 0 whole files, were here"));
  EXPECT_OK(CompareTrees(Served(), Fetched()));
  // And nothing is fetched twice.
  const GetResult again = Get({"--resume"});
  EXPECT_EQ(again.status, 0) << again.complaints;
  EXPECT_THAT(again.summary, HasSubstr("16.0 MiB of them, and 2 whole files, were here"));
}

TEST_F(FiledTest, shouldBeComparedWithWhatWasFetched) {
  MakeTree(10);
  ASSERT_NO_FATAL_FAILURE(StartService());
  EXPECT_EQ(Get().status, 0);
  const GetResult same = Get({"--verify"});
  EXPECT_EQ(same.status, 0) << same.complaints;
  EXPECT_THAT(same.summary, HasSubstr("compared in"));
  {
    std::fstream file(Fetched("large/1"), std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(4'000'000);
    const auto byte = static_cast<char>(file.get() ^ 1);
    file.seekp(4'000'000);
    file.put(byte);
  }
  std::filesystem::remove(Fetched("large/2"));
  const GetResult other = Get({"--verify"});
  EXPECT_EQ(other.status, 1);
  EXPECT_THAT(other.summary, HasSubstr("2 failed"));
  EXPECT_THAT(other.complaints, HasSubstr("large/1: it is another one than the server's"));
  EXPECT_FALSE(std::filesystem::exists(Fetched("large/2"))) << "it writes nothing";
}

TEST_F(FiledTest, shouldFailAFileThatChangesMeanwhileAndNoOther) {
  WriteFile(Served("changing"), 32 << 20, 1);
  WriteFile(Served("same"), 100'000, 2);
  ASSERT_NO_FATAL_FAILURE(StartService());
  const auto get = SpawnGet({"--limit-rate", "16777216"});
  ASSERT_NE(get, nullptr);
  ASSERT_OK(harness::WaitUntil("the first bytes", [&] {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(Fetched(), error)) {
      if (entry.file_size(error) > 0) return true;
    }
    return false;
  }));
  std::filesystem::resize_file(Served("changing"), 20 << 20);
  const GetResult got = Finish(get.get());
  EXPECT_EQ(got.status, 1);
  EXPECT_THAT(got.complaints, HasSubstr("changing: changed meanwhile"));
  EXPECT_FALSE(std::filesystem::exists(Fetched("changing")));
  EXPECT_TRUE(harness::ReadFile(Fetched("same")) == harness::ReadFile(Served("same")));
  ExpectHeld(0);
}

TEST_F(FiledTest, shouldRefuseAServiceThatDoesNotSufficeAndSayWhatWouldDo) {
  struct Case {
    std::vector<std::string> batond;
    const char* reason;
  };
  for (const Case& lacking : std::vector<Case>{
           {{"--outside-effects", "--shard-heap-bytes", "16777216"},
            "connection_state_bytes is 256, too little for filed: raise it to 408"},
           {{"--outside-effects", "--connection-state-bytes", "512"}, "shard_heap_bytes is 0"},
           {{"--connection-state-bytes", "512", "--shard-heap-bytes", "16777216"},
            "outside_effects"},
           {{"--outside-effects", "--connection-state-bytes", "512", "--shard-heap-bytes",
             "16777216", "--receive-queue-depth", "16"},
            "receive_queue_depth is 16"}}) {
    SCOPED_TRACE(lacking.reason);
    ASSERT_NO_FATAL_FAILURE(StartCluster(lacking.batond));
    ASSERT_NO_FATAL_FAILURE(ExpectRefused({}, lacking.reason));
    cluster_.reset();
  }
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  arguments_ = {"--directory", Served("none")};
  ASSERT_NO_FATAL_FAILURE(ExpectRefused({}, "cannot open the directory to serve"));
  arguments_ = {"--directory", Served(), "--piece-bytes", "5000"};
  ASSERT_NO_FATAL_FAILURE(ExpectRefused({}, "piece_bytes: 5000"));
}

}  // namespace
}  // namespace baton::filed
