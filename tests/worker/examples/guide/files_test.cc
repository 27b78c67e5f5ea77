// Chapter 6: files that are sent while their owners die and change.
// BATON_KILLS: how many owners are killed at random moments (20); BATON_SEED: of the random ones.
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "lib/base/status.h"
#include "lib/stream/file_pieces.h"
#include "tests/harness/setting.h"
#include "tests/harness/temp_directory.h"
#include "tests/lib/stream/stream_peer.h"
#include "tests/worker/examples/guide/guide_fixture.h"

namespace baton::guide {
namespace {

constexpr uint32_t kFileBytes = 3'000'001;
constexpr uint32_t kRingBytes = 1 << 18;
constexpr char kName[] = "content";
constexpr uint64_t kLatestKillUs = 60'000;
// Between two turns of a peer. The ring takes what comes meanwhile, and the workers have the
// processors.
constexpr std::chrono::microseconds kPeerRest{200};

// A peer with a thread of its own, which downloads the same file again and again.
class Downloading {
 public:
  Downloading(uint16_t port, const std::string& content)
      : content_(content), thread_([this, port] { Run(port); }) {}
  ~Downloading() { Join(); }
  Downloading(const Downloading&) = delete;
  Downloading& operator=(const Downloading&) = delete;

  uint64_t pieces() const { return pieces_; }
  uint64_t downloads() const { return downloads_; }
  bool failed() const { return failed_; }
  // Returns what is wrong, if anything.
  absl::Status Stop() {
    Join();
    return status_;
  }

 private:
  void Join() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }
  void Run(uint16_t port) {
    testing::StreamPeer peer(verbs::testing::FabricUnderTest(), kRingBytes);
    peer.on_message = [this](absl::Span<const uint8_t> message) {
      if (status_.ok()) status_ = Take(message);
      return true;
    };
    peer.Connect(port);
    bool asks = true;
    while (status_.ok() && !stop_) {
      peer.Turn();
      if (peer.disconnected || peer.rejected) status_ = absl::UnavailableError("disconnected");
      if (peer.established && asks) {
        asks = !peer.Send({reinterpret_cast<const uint8_t*>(kName), std::strlen(kName)}).ok();
      }
      if (checker_.has_value() && checker_->done()) {
        ++downloads_;
        checker_.reset();
        asks = true;
      }
      std::this_thread::sleep_for(kPeerRest);
    }
    failed_ = !status_.ok();
  }
  absl::Status Take(absl::Span<const uint8_t> message) {
    if (!checker_.has_value()) {
      uint64_t length = 0;
      if (message.size() != sizeof(length)) return absl::DataLossError("no length");
      std::memcpy(&length, message.data(), sizeof(length));
      if (length != content_.size()) return absl::DataLossError("another length");
      checker_.emplace(1, 0, length);
      return absl::OkStatus();
    }
    BATON_ASSIGN_OR_RETURN(const stream::PieceChecker::Piece piece, checker_->Check(message));
    ++pieces_;
    const bool is_right =
        std::memcmp(content_.data() + piece.offset, piece.bytes.data(), piece.bytes.size()) == 0;
    return is_right ? absl::OkStatus() : absl::DataLossError("other bytes");
  }

  const std::string& content_;
  std::optional<stream::PieceChecker> checker_;
  absl::Status status_;  // of the thread, until it was joined
  std::atomic<uint64_t> pieces_{0}, downloads_{0};
  std::atomic<bool> stop_{false}, failed_{false};
  std::thread thread_;
};

class FilesTest : public GuideTest {
 protected:
  static std::vector<std::string> BatondArguments() {
    return {"--outside-effects", "--shard-heap-bytes", "8388608"};
  }
  void MakeFile() {
    std::mt19937 random(3);
    content_.resize(kFileBytes);
    std::generate(content_.begin(), content_.end(), [&] { return static_cast<char>(random()); });
    std::ofstream(directory() + "/" + kName) << content_;
  }
  const std::string& directory() const { return files_.path(); }
  void StartDownloads() {
    for (int i = 0; i < 3; ++i) {
      downloads_.push_back(std::make_unique<Downloading>(cluster_->port(), content_));
    }
    ASSERT_NO_FATAL_FAILURE(ExpectDownloads());
  }
  // Each peer has got several pieces since this was called.
  void ExpectDownloads() {
    for (const auto& peer : downloads_) {
      const uint64_t enough = peer->pieces() + 10;
      EXPECT_OK(harness::WaitUntil(
          "pieces", [&] { return peer->failed() || peer->pieces() >= enough; }, kTimeout));
      if (peer->failed()) ASSERT_OK(peer->Stop());
    }
  }
  // Each has got a whole file after this was called.
  void ExpectWholeFiles() {
    for (const auto& peer : downloads_) {
      const uint64_t enough = peer->downloads() + 2;
      EXPECT_OK(harness::WaitUntil(
          "files", [&] { return peer->failed() || peer->downloads() >= enough; }, kTimeout));
      EXPECT_OK(peer->Stop());
    }
  }
  void TearDown() override {
    downloads_.clear();
    GuideTest::TearDown();
  }

  const harness::TempDirectory files_ = harness::TempDirectory::Create().value();
  std::string content_;
  std::vector<std::unique_ptr<Downloading>> downloads_;
};

TEST_F(FilesTest, shouldSendEachByteOnceWhereverTheOwnerDies) {
  ASSERT_NO_FATAL_FAILURE(MakeFile());
  ASSERT_NO_FATAL_FAILURE(StartCluster(BatondArguments()));
  std::unique_ptr<GuideWorker> safe;
  ASSERT_NO_FATAL_FAILURE(StartWorker("files", &safe, {directory()}));
  ASSERT_NO_FATAL_FAILURE(StartDownloads());
  for (const char* point :
       {"file-reads-submitted:1", "file-reads-submitted:20", "file-piece-read:1",
        "file-piece-read:20", "file-piece-staged:1", "file-piece-staged:20", "stream-placed:10",
        "commit-begin:10", "commit-before-publish:10", "commit-published:10"}) {
    SCOPED_TRACE(point);
    ASSERT_NO_FATAL_FAILURE(KillAt("files-test-hooks", {point}, *safe, {directory()}));
    ASSERT_NO_FATAL_FAILURE(ExpectDownloads());
  }
  ExpectWholeFiles();
}

TEST_F(FilesTest, shouldSendEachByteOnceWhenOwnersAreKilledAtRandom) {
  const auto kills = static_cast<int>(harness::Setting("BATON_KILLS", 20));
  const uint64_t seed = harness::Setting("BATON_SEED", std::random_device{}());
  std::printf("%d kills, BATON_SEED=%llu\n", kills, static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  ASSERT_NO_FATAL_FAILURE(MakeFile());
  ASSERT_NO_FATAL_FAILURE(StartCluster(BatondArguments()));
  std::vector<std::unique_ptr<GuideWorker>> workers(2);
  for (auto& worker : workers) {
    ASSERT_NO_FATAL_FAILURE(StartWorker("files", &worker, {directory()}));
  }
  ASSERT_NO_FATAL_FAILURE(StartDownloads());
  for (int i = 0; i < kills; ++i) {
    SCOPED_TRACE(i);
    const timespec moment = {0, static_cast<long>(random() % kLatestKillUs * 1000)};
    nanosleep(&moment, nullptr);
    const auto service = cluster_->GetService();
    ASSERT_OK(service);
    const size_t owner = service->shards(0).owner_worker_id() == workers[0]->id ? 0 : 1;
    if (random() % 2 == 0) {
      ASSERT_OK(cluster_->Handoff(workers[1 - owner]->id));
    }
    ASSERT_OK(workers[owner]->process->Kill());
    ASSERT_OK(cluster_->WaitUntilOwner(workers[1 - owner]->id));
    ASSERT_NO_FATAL_FAILURE(StartWorker("files", &workers[owner], {directory()}));
    ASSERT_NO_FATAL_FAILURE(ExpectDownloads());
  }
  ExpectWholeFiles();
}

TEST_F(FilesTest, shouldSendEachByteOnceWithNativeWorkers) {
  ASSERT_NO_FATAL_FAILURE(MakeFile());
  std::vector<std::string> arguments = BatondArguments();
  arguments.insert(arguments.end(),
                   {"--native", PathOf("files.so"), "--native-argument=unused",
                    "--native-argument=127.0.0.1:0", "--native-argument=" + directory()});
  ASSERT_NO_FATAL_FAILURE(StartCluster(arguments));
  ASSERT_OK(cluster_->WaitUntilListening());
  ASSERT_NO_FATAL_FAILURE(StartDownloads());
  for (int i = 0; i < 5; ++i) {
    ASSERT_NO_FATAL_FAILURE(KillOwner());
    ASSERT_NO_FATAL_FAILURE(ExpectDownloads());
  }
  ExpectWholeFiles();
}

TEST_F(FilesTest, shouldRefuseAServiceWithoutOutsideEffects) {
  ASSERT_NO_FATAL_FAILURE(StartCluster({"--shard-heap-bytes", "8388608"}));
  std::unique_ptr<harness::ChildProcess> files;
  ASSERT_NO_FATAL_FAILURE(Spawn("files", {directory()}, "", &files));
  const auto ended = files->WaitEnd(kTimeout);
  ASSERT_OK(ended);
  EXPECT_TRUE(WIFEXITED(*ended) && WEXITSTATUS(*ended) == 1) << *ended;
  EXPECT_THAT(files->LogTail(), ::testing::HasSubstr("outside_effects"));
}

}  // namespace
}  // namespace baton::guide
