// A Baton with filed workers, and clients that fetch its tree again and again, each over one
// connection.
#ifndef TESTS_WORKER_EXAMPLES_FILED_FILED_FIXTURE_H_
#define TESTS_WORKER_EXAMPLES_FILED_FILED_FIXTURE_H_

#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "tests/harness/binaries.h"
#include "tests/harness/child_process.h"
#include "tests/harness/cluster.h"
#include "tests/harness/expectations.h"
#include "tests/harness/file_content.h"
#include "tests/harness/temp_directory.h"
#include "tests/harness/wait_until.h"
#include "tests/lib/verbs/fabric.h"
#include "tests/worker/examples/example_fixture.h"
#include "worker/examples/filed/download.h"
#include "worker/examples/filed/get_client.h"
#include "worker/examples/filed/local_tree.h"

namespace baton::filed {

inline void WriteFile(const std::filesystem::path& path, size_t bytes, uint32_t seed) {
  std::minstd_rand random(seed + 1);
  std::string content(bytes, '\0');
  for (size_t at = 0; at < bytes; at += sizeof(uint32_t)) {
    const auto word = static_cast<uint32_t>(random());
    std::memcpy(&content[at], &word, std::min(sizeof(word), bytes - at));
  }
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << content;
}

// Reads large pieces: a client that compares is one that does not fetch.
inline bool HaveSameBytes(const std::filesystem::path& one, const std::filesystem::path& other) {
  if (std::filesystem::file_size(one) != std::filesystem::file_size(other)) return false;
  std::ifstream files[] = {std::ifstream(one, std::ios::binary),
                           std::ifstream(other, std::ios::binary)};
  std::vector<char> pieces[] = {std::vector<char>(256 << 10), std::vector<char>(256 << 10)};
  while (files[0] && files[1]) {
    for (int i = 0; i < 2; ++i) {
      files[i].read(pieces[i].data(), static_cast<std::streamsize>(pieces[i].size()));
    }
    const std::streamsize read = files[0].gcount();
    if (read != files[1].gcount()) return false;
    if (!std::equal(pieces[0].begin(), pieces[0].begin() + read, pieces[1].begin())) return false;
  }
  return files[0].eof() && files[1].eof();
}

// Returns OK if both have the same files with the same bytes.
inline absl::Status CompareTrees(const std::filesystem::path& one,
                                 const std::filesystem::path& other) {
  uint64_t entries = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(one)) {
    ++entries;
    const std::filesystem::path twin = other / std::filesystem::relative(entry.path(), one);
    const bool same = entry.is_directory() ? std::filesystem::is_directory(twin)
                                           : std::filesystem::is_regular_file(twin) &&
                                                 HaveSameBytes(entry.path(), twin);
    if (!same) return absl::DataLossError(absl::StrCat(twin.string(), " differs"));
  }
  const std::filesystem::recursive_directory_iterator all(other);
  const auto others = static_cast<uint64_t>(std::distance(begin(all), end(all)));
  if (entries == others) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(others, " entries in place of ", entries));
}

// Keeps what comes.
class Answers final : public GetClient::Sink {
 public:
  absl::Status OnPiece(uint64_t id, uint64_t, absl::Span<const uint8_t> bytes, bool last) override {
    bytes_[id].append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (last) codes_[id] = ReplyCode::kOk;
    return absl::OkStatus();
  }
  absl::Status OnReply(const DecodedReply& reply) override {
    codes_[reply.header.id] = ReplyCode(reply.header.code);
    replies_[reply.header.id] = reply;
    return absl::OkStatus();
  }

  // Returns how the request was answered, when it is.
  ReplyCode Await(GetClient& client, uint64_t id) {
    absl::Status status;
    while (status.ok() && !IsAnswered(id)) status = client.Turn(*this);
    EXPECT_OK(status);
    return codes_[id];
  }
  bool IsAnswered(uint64_t id) const { return codes_.contains(id); }
  bool Has(ReplyCode code) const {
    return std::any_of(codes_.begin(), codes_.end(),
                       [code](const auto& one) { return one.second == code; });
  }
  const DecodedReply& reply(uint64_t id) { return replies_[id]; }
  const std::string& bytes(uint64_t id) { return bytes_[id]; }

 private:
  std::map<uint64_t, ReplyCode> codes_;
  std::map<uint64_t, DecodedReply> replies_;
  std::map<uint64_t, std::string> bytes_;
};

// One client in a thread of its own, over one connection from its beginning to Stop. An answer is a
// piece, or a whole file.
class FetchLoad {
 public:
  // `into`: a directory for it alone.
  FetchLoad(uint16_t port, std::string served, std::string into)
      : served_(std::move(served)), into_(std::move(into)), thread_([this, port] { Run(port); }) {}
  ~FetchLoad() { Join(); }
  FetchLoad(const FetchLoad&) = delete;
  FetchLoad& operator=(const FetchLoad&) = delete;

  // Rests after each answer from now on, which leaves the processors to workers that start.
  void SlowDown() { rests_ = true; }
  uint64_t answers() const { return answers_; }
  uint64_t rounds() const { return rounds_; }
  // Answers since this fetch of the tree began, and those of a whole one; 0: there was none yet.
  uint64_t position() const { return answers_ - answers_before_; }
  uint64_t answers_of_round() const { return answers_of_round_; }
  bool failed() const { return ended_ && !stop_; }
  // Ends after a whole tree, and returns what it has found.
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
    status_ = FetchAll(port);
    ended_ = true;
  }

  absl::Status FetchAll(uint16_t port) {
    const verbs::testing::Fabric fabric = verbs::testing::FabricUnderTest();
    BATON_ASSIGN_OR_RETURN(std::unique_ptr<verbs::Device> device,
                           verbs::testing::OpenDevice(fabric));
    BATON_ASSIGN_OR_RETURN(const std::unique_ptr<GetClient> client,
                           GetClient::Connect(std::move(device), {fabric.host, port}));
    while (!stop_) {
      answers_before_ = answers_.load();
      BATON_RETURN_IF_ERROR(Fetch(*client));
      answers_of_round_ = position();
      ++rounds_;
    }
    return absl::OkStatus();
  }

  absl::Status Fetch(GetClient& client) {
    std::filesystem::remove_all(into_);
    BATON_ASSIGN_OR_RETURN(LocalTree tree, LocalTree::Open(into_));
    absl::Status complaint;
    const auto complain = [&](const std::string& path, const std::string& reason) {
      complaint = absl::DataLossError(absl::StrCat(path, ": ", reason));
    };
    // Ranges of several pieces, several for each of the larger files.
    DownloadOptions options;
    options.range_bytes = 1 << 20;
    Download download(&client, &tree, options, complain, [&](const Totals&, const std::string&) {
      ++answers_;
      if (rests_ && !stop_) std::this_thread::sleep_for(kRest);
    });
    BATON_RETURN_IF_ERROR(download.Run(""));
    BATON_RETURN_IF_ERROR(complaint);
    return CompareTrees(served_, into_);
  }

  static constexpr std::chrono::milliseconds kRest{1};

  const std::string served_, into_;
  absl::Status status_;  // of the thread, until it was joined
  std::atomic<uint64_t> answers_{0}, answers_before_{0}, answers_of_round_{0}, rounds_{0};
  std::atomic<bool> stop_{false}, ended_{false}, rests_{false};
  std::thread thread_;
};

class FiledTest : public examples::ExampleTest<FetchLoad> {
 protected:
  FiledTest() : ExampleTest("filed") {}

  void SetUp() override {
    ASSERT_OK(temporary_);
    std::filesystem::create_directory(Served());
    arguments_ = {"--directory", Served()};
  }

  static std::vector<std::string> EnoughOfAll() {
    return {"--outside-effects", "--connection-state-bytes", "512", "--shard-heap-bytes",
            "16777216"};
  }
  void StartCluster(std::vector<std::string> batond_arguments = EnoughOfAll()) {
    harness::ClusterOptions options;
    options.shards = 2;
    options.max_connections = 16;
    options.batond_arguments = std::move(batond_arguments);
    ASSERT_NO_FATAL_FAILURE(Start(std::move(options)));
  }
  // A cluster with a worker.
  void StartService() {
    ASSERT_NO_FATAL_FAILURE(StartCluster());
    ASSERT_NO_FATAL_FAILURE(StartWorker({}, &worker_));
  }

  // A cluster whose workers are native, and listen.
  void StartNative(const std::string& object, uint32_t workers = 8) {
    std::vector<std::string> more = EnoughOfAll();
    // Some completions may be there at three deaths that they have nothing to do with.
    more.insert(more.end(), {"--poison-deaths", "1000"});
    const std::vector<std::string> native =
        NativeArguments(object, {"--directory=" + Served()}, workers);
    more.insert(more.end(), native.begin(), native.end());
    ASSERT_NO_FATAL_FAILURE(StartCluster(std::move(more)));
    ASSERT_OK(cluster_->WaitUntilListening());
    port_ = cluster_->port();
  }

  std::string Served(const std::string& name = "") const {
    return temporary_->File(name.empty() ? "served" : "served/" + name);
  }
  std::string Fetched(const std::string& name = "") const {
    return temporary_->File(name.empty() ? "fetched" : "fetched/" + name);
  }

  // Small files and some larger ones, in several directories.
  void MakeTree(int files = 60) const {
    for (int i = 0; i < files; ++i) {
      WriteFile(Served(absl::StrCat("d", i % 7, "/e", i % 3, "/f", i)), i * 4801 % 120'000,
                static_cast<uint32_t>(i));
    }
    WriteFile(Served("large/1"), 5'000'001, 1001);
    WriteFile(Served("large/2"), 4 << 20, 1002);
    WriteFile(Served("large/3"), (1 << 20) - 1, 1003);
    std::filesystem::create_directory(Served("empty"));
  }

  void StartLoads(int count) {
    for (int i = 0; i < count; ++i) {
      loads_.push_back(std::make_unique<FetchLoad>(
          port_, Served(), temporary_->File(absl::StrCat("load", loads_.size()))));
    }
    ASSERT_NO_FATAL_FAILURE(ExpectProgress());
  }

  // Starts clients that rest after each answer. Owners die at named points, which a few answers
  // reach.
  void StartSlowLoads(int count) {
    ASSERT_NO_FATAL_FAILURE(StartLoads(count));
    for (const auto& load : loads_) load->SlowDown();
  }

  std::unique_ptr<GetClient> Connect() {
    const verbs::testing::Fabric fabric = verbs::testing::FabricUnderTest();
    auto device = verbs::testing::OpenDevice(fabric);
    EXPECT_OK(device);
    if (!device.ok()) return nullptr;
    auto client = GetClient::Connect(*std::move(device), {fabric.host, port_});
    EXPECT_OK(client);
    return client.ok() ? *std::move(client) : nullptr;
  }

  using Asking = std::pair<GetClient*, Answers*>;
  // Waits until the driver holds so many files. `clients` acknowledge meanwhile what has come:
  // their devices do nothing between their turns, and a file is held until its last byte is
  // acknowledged.
  void ExpectHeld(uint32_t files, const std::vector<Asking>& clients = {}) {
    EXPECT_OK(harness::WaitUntil(absl::StrCat(files, " held files"), [&] {
      for (const auto& [client, answers] : clients) EXPECT_OK(client->Turn(*answers));
      const auto found = cluster_->GetService();
      return found.ok() && found->service().accounts().descriptors() == files;
    }));
  }

  // Starts baton-get of all, or of `path`, into Fetched().
  std::unique_ptr<harness::ChildProcess> SpawnGet(const std::vector<std::string>& arguments = {},
                                                  const std::string& path = "") {
    const auto program = harness::Binaries().Find("baton-get");
    EXPECT_OK(program);
    if (!program.ok()) return nullptr;
    const verbs::testing::Fabric fabric = verbs::testing::FabricUnderTest();
    harness::ChildOptions child;
    child.program = *program;
    child.arguments = {absl::StrCat(fabric.host, ":", port_, "/", path), "-o", Fetched(),
                       "--device", fabric.device};
    child.arguments.insert(child.arguments.end(), arguments.begin(), arguments.end());
    child.log_path = absl::StrCat(cluster_->directory(), "/get-", logs_.size(), ".log");
    logs_.push_back(child.log_path);
    auto started = harness::ChildProcess::Start(child);
    EXPECT_OK(started);
    return started.ok() ? *std::move(started) : nullptr;
  }

  struct GetResult {
    int status = -1;
    std::string summary, complaints;
  };
  static GetResult Finish(harness::ChildProcess* get) {
    GetResult result;
    if (get == nullptr) return result;
    const auto line = get->ReadLine(examples::kTimeout);
    if (line.ok()) result.summary = *line;
    const auto end = get->WaitEnd(examples::kTimeout);
    EXPECT_OK(end);
    if (end.ok() && WIFEXITED(*end)) result.status = WEXITSTATUS(*end);
    result.complaints = get->LogTail();
    return result;
  }
  GetResult Get(const std::vector<std::string>& arguments = {}, const std::string& path = "") {
    return Finish(SpawnGet(arguments, path).get());
  }

  const absl::StatusOr<harness::TempDirectory> temporary_ = harness::TempDirectory::Create();
};

}  // namespace baton::filed

#endif  // TESTS_WORKER_EXAMPLES_FILED_FILED_FIXTURE_H_
