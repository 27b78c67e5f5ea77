// Transfers of a file's range over a stream, whose owners die and change.
// BATON_KILLS: how many owners die at random steps (40); BATON_SEED: of these (printed).
#include "worker/file_sender.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "lib/base/crc32c.h"
#include "lib/base/status.h"
#include "tests/harness/setting.h"
#include "tests/harness/temp_directory.h"
#include "tests/lib/driver/own_memory.h"
#include "tests/lib/stream/stream_peer.h"
#include "tests/worker/counted_stream.h"
#include "tests/worker/worker_fixture.h"
#include "worker/heap.h"
#include "worker/held_files.h"
#include "worker/region_cache.h"

namespace baton {
namespace {

using driver::testing::OwnMemory;
using testing::CountedStream;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kDepth;
using testing::kHeapBytes;
using testing::kRingBytes;
using testing::kWindow;
using testing::ScriptedService;
using ::testing::SizeIs;
using testing::StreamPeer;
using testing::WorkerFixture;
using Kind = Completion::Kind;

constexpr uint32_t kFormat = 1;
constexpr uint32_t kPeerRingBytes = 64 << 10;
constexpr uint32_t kPieceBytes = 4096;
constexpr uint32_t kFileBytes = 300'001;

TEST(FileTransfer, shouldHaveTheBytesThatSuccessorsRead) {
  EXPECT_EQ(kFileTransferVersion, 1u);
  EXPECT_EQ(sizeof(FileTransfer), 80u);
  EXPECT_EQ(offsetof(FileTransfer, version), 0u);
  EXPECT_EQ(offsetof(FileTransfer, crc), 4u);
  EXPECT_EQ(offsetof(FileTransfer, transfer), 8u);
  EXPECT_EQ(offsetof(FileTransfer, device), 16u);
  EXPECT_EQ(offsetof(FileTransfer, inode), 24u);
  EXPECT_EQ(offsetof(FileTransfer, size), 32u);
  EXPECT_EQ(offsetof(FileTransfer, mtime_seconds), 40u);
  EXPECT_EQ(offsetof(FileTransfer, mtime_nanoseconds), 48u);
  EXPECT_EQ(offsetof(FileTransfer, next), 56u);
  EXPECT_EQ(offsetof(FileTransfer, end), 64u);
  EXPECT_EQ(offsetof(FileTransfer, held), 72u);
}

// A peer asks for a range with this message.
struct Request {
  uint64_t transfer;
  uint64_t offset;
  uint64_t length;
};
// The service keeps this of a connection.
struct Account {
  stream::StreamState ends;
  FileTransfer transfer;
};

Account FileAccountOf(const Connection& connection) {
  Account account = {};
  if (connection.state().size() == sizeof(account)) {
    std::memcpy(&account, connection.state().data(), sizeof(account));
  }
  return account;
}

// One worker's service. It sends ranges of the file at `path`.
class SendingOwner {
 public:
  // Steps of an event, after each of which an owner may end.
  enum Step { kBegin, kRead, kAdvanced, kStored, kSteps };

  SendingOwner(ScriptedService* service, Worker* worker, std::string path,
               const FileReads::Options& options)
      : path_(std::move(path)), worker_(worker), service_(service) {
    auto made = FileReads::Create(*worker, options);
    EXPECT_TRUE(made.ok()) << made.status();
    reads_ = *std::move(made);
    service->on_adopt = [this](Shard& shard) { return Adopt(shard); };
    service->on_completion = [this](Shard& shard, const Completion& completion) {
      if (!dead) Note(shard, *completion.connection, Handle(shard, completion), completion.kind);
    };
    service->on_release = [this](Shard& shard) { End(&shard); };
    service->on_lost = [this](Shard& shard) { End(&shard); };
  }

  // The kernel ends the reads of a process before it is dead.
  void End(Shard* shard) {
    senders_.clear();
    if (shard != nullptr && reads_ != nullptr) reads_->Finish(*shard);
  }
  void DropSenders() { senders_.clear(); }
  // Closes its descriptors, too. No shard is its own any more.
  void CloseReads() { reads_.reset(); }
  FileReads& reads() { return *reads_; }
  Worker* worker() const { return worker_; }
  ScriptedService& service() { return *service_; }
  Shard* shard() const {
    return service_->shards.empty() ? nullptr : service_->shards.begin()->second;
  }
  std::vector<uint64_t> held() const {
    const auto numbers = worker_->HeldDescriptors(HeldFiles::kTag + shard()->index());
    EXPECT_TRUE(numbers.ok()) << numbers.status();
    return numbers.value_or(std::vector<uint64_t>());
  }
  void SendFromRegions(const RegionCache::Options& options) {
    auto made = RegionCache::Create(*worker_, options);
    EXPECT_TRUE(made.ok()) << made.status();
    regions = *std::move(made);
    pipeline.regions = regions.get();
  }
  FileSender* sender() const { return senders_.empty() ? nullptr : senders_.begin()->second.get(); }

  bool dead = false;
  std::function<bool(Step)> dies;
  std::vector<absl::Status> errors;
  FileSender::Options pipeline = {.piece_bytes = kPieceBytes, .depth = 4};
  std::unique_ptr<RegionCache> regions;
  uint64_t own_held = 0;   // the service's own
  bool drops_lost = true;  // when it has adopted a shard
  // The status of the transfer that has begun last.
  absl::Status hold_status, region_status;
  // The status of the one that was staged to its end last.
  Connection* last = nullptr;
  uint64_t last_sends = 0;

 private:
  // Devices need writable memory, and nothing is written.
  FileDescriptor Open() const {
    const int access = regions == nullptr ? O_RDONLY : O_RDWR;
    return FileDescriptor(open(path_.c_str(), access | O_CLOEXEC));
  }
  std::function<void()> WakeOf(Connection& connection) {
    return [this, &connection] {
      if (dead) return;
      Note(connection.shard(), connection, Advance(connection, nullptr), Kind::kSend);
    };
  }
  bool Ends(Step step) { return !dead && dies && dies(step); }

  void Note(Shard& shard, Connection& connection, const absl::Status& status, Kind kind) {
    if (status.ok() || dead) return;
    errors.push_back(status);
    shard.Abandon();
    senders_.erase(connection.index());
    const bool asks = kind == Kind::kConnectRequest;
    EXPECT_EQ(asks ? shard.Reject(connection) : shard.Disconnect(connection), absl::OkStatus());
  }

  absl::Status Adopt(Shard& shard) {
    BATON_RETURN_IF_ERROR(CountedStream::Adopt(shard));
    if (regions != nullptr) BATON_RETURN_IF_ERROR(regions->TakeOver());
    for (Connection* connection : shard.connections()) {
      const Account account = FileAccountOf(*connection);
      if (account.transfer.version == 0 || account.transfer.next == account.transfer.end) continue;
      auto loaded = FileSender::Load(*reads_, *connection, Open(), account.transfer,
                                     WakeOf(*connection), pipeline);
      if (loaded.ok()) {
        senders_[connection->index()] = *std::move(loaded);
        continue;
      }
      errors.push_back(loaded.status());
      BATON_RETURN_IF_ERROR(shard.Disconnect(*connection));
    }
    if (drops_lost) reads_->held_files().Adopt(shard);
    return absl::OkStatus();
  }

  absl::Status Handle(Shard& shard, const Completion& completion) {
    Connection& connection = *completion.connection;
    if (completion.kind == Kind::kConnectRequest) {
      BATON_ASSIGN_OR_RETURN(const StreamRing ring, Stream::OpenRing(shard, kRingBytes));
      BATON_ASSIGN_OR_RETURN(const Stream stream, Stream::Accept(connection, ring, kWindow));
      return Save(connection, stream, {});
    }
    if (connection.state().empty() || completion.kind == Kind::kEstablished) {
      return absl::OkStatus();
    }
    if (completion.kind == Kind::kReceive || completion.kind == Kind::kSend) {
      return Advance(connection, &completion);
    }
    senders_.erase(connection.index());
    BATON_ASSIGN_OR_RETURN(const Stream stream, Stream::Load(connection, connection.state()));
    return Stream::CloseRing(shard, stream.ring());
  }

  // For a completion, or a wake without one.
  absl::Status Advance(Connection& connection, const Completion* completion) {
    BATON_ASSIGN_OR_RETURN(Stream stream, Stream::Load(connection, connection.state()));
    FileTransfer transfer = FileAccountOf(connection).transfer;
    if (Ends(kBegin)) return absl::OkStatus();
    if (completion != nullptr) {
      BATON_ASSIGN_OR_RETURN(const Stream::Event event, stream.OnCompletion(*completion));
      if (event.kind == Stream::Event::Kind::kMessage) {
        BATON_RETURN_IF_ERROR(BeginOne(connection, event));
        BATON_RETURN_IF_ERROR(stream.Release(event));
      }
    }
    if (Ends(kRead)) return absl::OkStatus();
    if (const auto found = senders_.find(connection.index()); found != senders_.end()) {
      BATON_RETURN_IF_ERROR(found->second->Advance(stream));
      hold_status = found->second->hold_status();
      region_status = found->second->region_status();
      transfer = found->second->state();
      if (found->second->done()) {
        last = &connection;
        last_sends = connection.next_send();
        senders_.erase(found);
      }
    }
    if (Ends(kAdvanced)) return absl::OkStatus();
    BATON_RETURN_IF_ERROR(Save(connection, stream, transfer));
    (void)Ends(kStored);
    return absl::OkStatus();
  }

  absl::Status BeginOne(Connection& connection, const Stream::Event& event) {
    Request request = {};
    EXPECT_EQ(event.message.length, sizeof(request));
    std::memcpy(&request, connection.shard().heap().At(event.message), sizeof(request));
    std::unique_ptr<FileSender>& sender = senders_[connection.index()];
    BATON_ASSIGN_OR_RETURN(sender,
                           FileSender::Begin(*reads_, connection, Open(),
                                             {request.transfer, request.offset, request.length},
                                             WakeOf(connection), pipeline));
    sender->SetHeld(own_held);
    return absl::OkStatus();
  }

  static absl::Status Save(Connection& connection, const Stream& stream,
                           const FileTransfer& transfer) {
    Account account = {{}, transfer};
    std::memcpy(&account.ends, stream.state().data(), Stream::kStateBytes);
    return connection.shard().SetState(
        connection, {reinterpret_cast<const uint8_t*>(&account), sizeof(account)}, kFormat);
  }

  const std::string path_;
  Worker* const worker_;
  ScriptedService* const service_;
  std::unique_ptr<FileReads> reads_;
  std::map<uint32_t, std::unique_ptr<FileSender>> senders_;
};

// A peer that asks for ranges, one after the other, and looks at each byte.
class AskingPeer {
 public:
  AskingPeer(const verbs::testing::Fabric& fabric, const std::vector<uint8_t>& file)
      : stream(fabric, kPeerRingBytes), file_(file) {
    stream.on_message = [this](absl::Span<const uint8_t> message) { return Take(message); };
  }

  void Ask(uint64_t offset, uint64_t length) {
    const Request request = {++transfer_, offset, length};
    checker_.emplace(transfer_, offset, length);
    ASSERT_EQ(stream.Send({reinterpret_cast<const uint8_t*>(&request), sizeof(request)}),
              absl::OkStatus());
  }
  bool done() const { return checker_.has_value() && checker_->done(); }
  uint64_t next() const { return checker_->next(); }
  uint32_t crc() const { return checker_->crc(); }

  StreamPeer stream;
  bool keeps = false;  // it gives no credit back
  uint64_t pieces = 0;

 private:
  bool Take(absl::Span<const uint8_t> message) {
    const auto piece = checker_->Check(message);
    EXPECT_TRUE(piece.ok()) << piece.status();
    if (!piece.ok()) return true;
    EXPECT_TRUE(std::equal(piece->bytes.begin(), piece->bytes.end(),
                           file_.begin() + static_cast<ptrdiff_t>(piece->offset)))
        << "at byte " << piece->offset;
    ++pieces;
    return !keeps;
  }

  const std::vector<uint8_t>& file_;
  std::optional<stream::PieceChecker> checker_;
  uint64_t transfer_ = 100;
};

// With io_uring, and with pread.
class FileSenderTest : public WorkerFixture, public ::testing::WithParamInterface<bool> {
 protected:
  using Step = SendingOwner::Step;

  void SetUp() override {
    std::mt19937 random(7);
    content.resize(kFileBytes);
    std::generate(content.begin(), content.end(), [&] { return static_cast<uint8_t>(random()); });
    file.Reset(open(path().c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    ASSERT_EQ(write(file.get(), content.data(), content.size()),
              static_cast<ssize_t>(content.size()));
    Forget();
    options.use_io_uring = GetParam();
    Start([](v1::ServiceConfig* config) {
      config->set_send_queue_depth(kDepth);
      config->set_receive_queue_depth(kDepth);
      config->set_connection_state_bytes(256);
      config->set_shard_heap_bytes(kHeapBytes);
      config->set_max_workers(64);
      config->set_outside_effects(true);
    });
  }
  std::string path() const { return directory.File("file"); }
  // Reads of the file go to the disk from now on, where it is on one.
  void Forget() const {
    ASSERT_EQ(fsync(file.get()), 0);
    (void)posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
  }

  SendingOwner& AddOwner() {
    ScriptedService& service = NewService();
    Worker* const worker = Add(&service, CommitMode::kAfterEachCompletion);
    SendingOwner& owner = owners.emplace_back(&service, worker, sent, options);
    owner.pipeline.hold_from_bytes = hold_from_bytes;
    if (regions) owner.SendFromRegions(*regions);
    owner.dies = [this, &owner](Step step) {
      if (!dies || !dies(step)) return false;
      Die(owner);
      return true;
    };
    return owner;
  }
  // Owners send this from now on: a memfd with the same bytes, from its own memory.
  void SendMemory(const RegionCache::Options& cache) {
    std::copy(content.begin(), content.end(), memory.data());
    sent = "/proc/self/fd/" + std::to_string(memory.fd());
    regions = cache;
  }
  void Die(SendingOwner& owner) {
    owner.dead = true;
    ++deaths;
    driver_process::Engine& engine = keeper.engine();
    const uint32_t shard = owner.shard()->index();
    engine.Run([&] {
      engine.succession().WorkerEnded(engine.succession().ownership(shard).owner_slot(),
                                      owner.worker()->id(), "crash");
    });
    ended.push_back(&owner);
  }
  // The processes of dead owners are gone after this. Then a successor starts.
  void KeepStandbys() {
    for (SendingOwner* owner : ended) {
      owner->End(owner->shard());
      EXPECT_EQ(owner->reads().statistics().pieces, 0u);
      owner->CloseReads();
      Remove(owner->worker());
    }
    ended.clear();
    size_t alive = 0;
    for (const SendingOwner& owner : owners) alive += owner.dead ? 0 : 1;
    for (; alive < 2; ++alive) AddOwner();
  }
  SendingOwner* Owner() {
    for (SendingOwner& owner : owners) {
      if (!owner.dead && owner.shard() != nullptr) return &owner;
    }
    return nullptr;
  }

  [[nodiscard]] bool UntilWith(AskingPeer& peer, const std::function<bool()>& done) {
    return driver::testing::Pump(
        [&] {
          for (int i = 0; i < 4; ++i) peer.stream.Turn();
          Turn();
          if (!ended.empty()) KeepStandbys();
        },
        done);
  }
  void Connect(AskingPeer& peer) {
    peer.stream.Connect(workers.back()->Listen(fabric.host, 0).value());
    ASSERT_TRUE(UntilWith(peer, [&] { return peer.stream.established; }));
  }
  absl::Status HandoffWith(AskingPeer& peer, const SendingOwner& to) {
    auto result = std::async(std::launch::async, [&] { return keeper.Handoff(to.worker()->id()); });
    EXPECT_TRUE(UntilWith(peer, [&] {
      return result.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
    }));
    return result.get();
  }
  // Owners die at each step in its turn, at a random one of its occurrences.
  void DieWhileThePeerAsks(AskingPeer& peer, int kills, uint32_t seed = 11) {
    std::mt19937 random(seed);
    int passed = 0;
    dies = [&](Step step) {
      // No completion is poison.
      if (deaths >= kills || step != deaths % SendingOwner::kSteps || ++passed < 6) return false;
      if (random() % 4 != 0) return false;
      passed = 0;
      return true;
    };
    while (deaths < kills) {
      ASSERT_NO_FATAL_FAILURE(Forget());
      ASSERT_NO_FATAL_FAILURE(peer.Ask(random() % 1000, kFileBytes - 1000));
      ASSERT_TRUE(UntilWith(peer, [&] { return peer.done(); }))
          << deaths << " deaths, at byte " << peer.next();
    }
    EXPECT_EQ(deaths, kills);
    dies = nullptr;
    ExpectNothingLeft(peer);
  }
  void ExpectNothingHeld(AskingPeer& peer) {
    EXPECT_TRUE(UntilWith(peer, [&] { return Owner() != nullptr && Owner()->held().empty(); }));
  }
  // Everything is accounted for: the ring is all that is allocated.
  void ExpectNothingLeft(AskingPeer& peer) {
    EXPECT_TRUE(UntilWith(peer, [&] {
      SendingOwner* const owner = Owner();
      if (owner == nullptr || owner->reads().statistics().pieces != 0) return false;
      const auto statistics = owner->shard()->heap().statistics();
      EXPECT_TRUE(statistics.ok()) << statistics.status();
      return statistics->scratch == 0 && statistics->kept >= kRingBytes &&
             statistics->kept < 2 * kRingBytes &&
             statistics->kept + statistics->held + statistics->free <= statistics->bytes;
    })) << "memory is missing";
    EXPECT_FALSE(peer.stream.disconnected);
    EXPECT_FALSE(peer.stream.was_not_ready);
    for (const SendingOwner& owner : owners) {
      for (const absl::Status& error : owner.errors) ADD_FAILURE() << error;
    }
  }
  // The peer has left: the whole heap can be allocated at once.
  void ExpectEveryByteFree(AskingPeer& peer) {
    EXPECT_TRUE(UntilWith(peer, [&] {
      SendingOwner* const owner = Owner();
      if (owner == nullptr || owner->shard()->heap().statistics()->kept != 0) return false;
      Heap& heap = owner->shard()->heap();
      const auto all = heap.AllocateScratch(heap.statistics()->bytes);
      if (all.ok()) EXPECT_EQ(heap.Free(*all), absl::OkStatus());
      return all.ok();
    })) << "memory is missing";
  }
  void ExpectEnd(AskingPeer& peer, absl::StatusCode code, const std::string& text) {
    EXPECT_TRUE(UntilWith(peer, [&] { return peer.stream.disconnected; }));
    std::vector<absl::Status> errors;
    for (const SendingOwner& owner : owners) {
      errors.insert(errors.end(), owner.errors.begin(), owner.errors.end());
    }
    ASSERT_EQ(errors.size(), 1u);
    EXPECT_EQ(errors[0].code(), code) << errors[0];
    EXPECT_THAT(errors[0].ToString(), HasSubstr(text));
    EXPECT_FALSE(peer.done());
    EXPECT_TRUE(UntilWith(peer, [&] {
      SendingOwner* const owner = Owner();
      return owner != nullptr && owner->reads().statistics().pieces == 0 &&
             owner->shard()->heap().statistics()->scratch == 0 &&
             owner->shard()->heap().statistics()->kept == 0;
    }));
  }

  const harness::TempDirectory directory = harness::TempDirectory::Create().value();
  FileDescriptor file;
  std::vector<uint8_t> content;
  OwnMemory memory{kFileBytes};
  std::string sent = path();
  std::optional<RegionCache::Options> regions;
  uint64_t hold_from_bytes = FileSender::Options().hold_from_bytes;
  FileReads::Options options;
  std::function<bool(Step)> dies;
  int deaths = 0;
  std::deque<SendingOwner> owners;
  std::vector<SendingOwner*> ended;
};

INSTANTIATE_TEST_SUITE_P(IoUring, FileSenderTest, ::testing::Values(true));
INSTANTIATE_TEST_SUITE_P(Pread, FileSenderTest, ::testing::Values(false));

TEST_P(FileSenderTest, shouldSendRanges) {
  AddOwner();
  AskingPeer peer(fabric, content);
  ASSERT_NO_FATAL_FAILURE(Connect(peer));
  for (const auto& [offset, length] : std::vector<std::pair<uint64_t, uint64_t>>{
           {0, kFileBytes}, {0, 1}, {4095, 2}, {kFileBytes - 1, 1}, {123, 100'000}}) {
    SCOPED_TRACE(offset);
    ASSERT_NO_FATAL_FAILURE(peer.Ask(offset, length));
    ASSERT_TRUE(UntilWith(peer, [&] { return peer.done(); }));
    EXPECT_EQ(peer.crc(), Crc32c(0, content.data() + offset, length));
  }
  ExpectNothingLeft(peer);
}

// The second owner computes them.
TEST_P(FileSenderTest, shouldSendWithoutChecksums) {
  for (int i = 0; i < 2; ++i) AddOwner().pipeline.checksums = i == 1;
  AskingPeer peer(fabric, content);
  ASSERT_NO_FATAL_FAILURE(Connect(peer));
  peer.keeps = true;
  ASSERT_NO_FATAL_FAILURE(peer.Ask(5, kFileBytes - 5));
  ASSERT_TRUE(UntilWith(peer, [&] { return peer.pieces >= 3; }));
  EXPECT_EQ(peer.crc(), 0u);
  ASSERT_EQ(HandoffWith(peer, owners[1]), absl::OkStatus());
  peer.keeps = false;
  peer.stream.ReleaseKept();
  ASSERT_TRUE(UntilWith(peer, [&] { return peer.done(); }));
  EXPECT_NE(peer.crc(), 0u);
  ExpectNothingLeft(peer);
}

TEST_P(FileSenderTest, shouldSendNothingOfAnEmptyRange) {
  SendingOwner& owner = AddOwner();
  AskingPeer peer(fabric, content);
  ASSERT_NO_FATAL_FAILURE(Connect(peer));
  ASSERT_NO_FATAL_FAILURE(peer.Ask(kFileBytes, 0));
  EXPECT_TRUE(UntilWith(peer, [&] { return owner.service().Count(Kind::kReceive) == 1; }));
  ExpectNothingLeft(peer);
  EXPECT_EQ(peer.pieces, 0u);
}

TEST_P(FileSenderTest, shouldRefuseARangeThatTheFileDoesNotHave) {
  AddOwner();
  AskingPeer peer(fabric, content);
  ASSERT_NO_FATAL_FAILURE(Connect(peer));
  ASSERT_NO_FATAL_FAILURE(peer.Ask(1, kFileBytes));
  ExpectEnd(peer, absl::StatusCode::kOutOfRange, std::to_string(kFileBytes));
}

TEST_P(FileSenderTest, shouldRefuseWhatIsNoRegularFile) {
  ASSERT_EQ(unlink(path().c_str()), 0);
  ASSERT_EQ(mkfifo(path().c_str(), 0600), 0);
  const FileDescriptor writer(open(path().c_str(), O_RDWR | O_CLOEXEC));
  AddOwner();
  AskingPeer peer(fabric, content);
  ASSERT_NO_FATAL_FAILURE(Connect(peer));
  ASSERT_NO_FATAL_FAILURE(peer.Ask(0, 1));
  ExpectEnd(peer, absl::StatusCode::kInvalidArgument, "regular file");
}

// Reads are under way while the shard moves, where the file is on a disk.
TEST_P(FileSenderTest, shouldGoOnAtTheRightByteAfterHandoffs) {
  AddOwner();
  AskingPeer peer(fabric, content);
  ASSERT_NO_FATAL_FAILURE(Connect(peer));
  AddOwner();
  for (int round = 0; round < 10; ++round) {
    ASSERT_NO_FATAL_FAILURE(Forget());
    ASSERT_NO_FATAL_FAILURE(peer.Ask(static_cast<uint64_t>(round) * 7, kFileBytes - 100));
    const uint64_t some = peer.pieces + 5;
    ASSERT_TRUE(UntilWith(peer, [&] { return peer.pieces >= some; }));
    ASSERT_EQ(HandoffWith(peer, owners[round % 2 == 0 ? 1 : 0]), absl::OkStatus());
    ASSERT_TRUE(UntilWith(peer, [&] { return peer.done(); })) << peer.next();
  }
  ExpectNothingLeft(peer);
}

TEST_P(FileSenderTest, shouldLoseAndRepeatNothingWhenOwnersDie) {
  KeepStandbys();
  AskingPeer peer(fabric, content);
  ASSERT_NO_FATAL_FAILURE(Connect(peer));
  const auto kills = static_cast<int>(harness::Setting("BATON_KILLS", 40));
  const auto seed = static_cast<uint32_t>(harness::Setting("BATON_SEED", std::random_device()()));
  std::printf("%d kills, BATON_SEED=%u\n", kills, seed);
  ASSERT_NO_FATAL_FAILURE(DieWhileThePeerAsks(peer, kills, seed));
  peer.stream.Disconnect();
  ExpectEveryByteFree(peer);
}

TEST_P(FileSenderTest, shouldHoldNoMemoryForAPeerThatGivesNoCredit) {
  SendingOwner& owner = AddOwner();
  AskingPeer peer(fabric, content);
  ASSERT_NO_FATAL_FAILURE(Connect(peer));
  peer.keeps = true;
  ASSERT_NO_FATAL_FAILURE(peer.Ask(0, kFileBytes));
  ASSERT_TRUE(UntilWith(peer, [&] { return peer.pieces >= 4; }));
  uint64_t before = 0;
  // It has stopped: no piece more comes in many turns.
  ASSERT_TRUE(UntilWith(peer, [&] {
    before = peer.pieces;
    for (int i = 0; i < 200; ++i) {
      peer.stream.Turn();
      Turn();
    }
    return peer.pieces == before;
  }));
  EXPECT_LE(peer.pieces, kPeerRingBytes / kPieceBytes);
  EXPECT_EQ(owner.reads().statistics().pieces, 0u);
  EXPECT_EQ(owner.shard()->heap().statistics()->scratch, 0u);
  peer.keeps = false;
  peer.stream.ReleaseKept();
  EXPECT_TRUE(UntilWith(peer, [&] { return peer.done(); }));
  ExpectNothingLeft(peer);
}

TEST_P(FileSenderTest, shouldFreeTheMemoryOfAPeerThatLeaves) {
  SendingOwner& owner = AddOwner();
  AskingPeer peer(fabric, content);
  ASSERT_NO_FATAL_FAILURE(Connect(peer));
  ASSERT_NO_FATAL_FAILURE(peer.Ask(0, kFileBytes));
  ASSERT_TRUE(UntilWith(peer, [&] { return peer.pieces >= 3; }));
  peer.stream.Disconnect();
  EXPECT_TRUE(UntilWith(peer, [&] {
    const auto heap = owner.shard()->heap().statistics();
    return owner.service().Count(Kind::kDisconnected) == 1 && heap->kept == 0 &&
           heap->scratch == 0 && owner.reads().statistics().pieces == 0;
  }));
  EXPECT_EQ(owner.sender(), nullptr);
}

TEST_P(FileSenderTest, shouldSayThatTheFileWasTruncated) {
  AddOwner();
  AskingPeer peer(fabric, content);
  ASSERT_NO_FATAL_FAILURE(Connect(peer));
  peer.keeps = true;
  ASSERT_NO_FATAL_FAILURE(peer.Ask(0, kFileBytes));
  ASSERT_TRUE(UntilWith(peer, [&] { return peer.pieces >= 3; }));
  ASSERT_EQ(ftruncate(file.get(), kFileBytes / 2), 0);
  peer.keeps = false;
  peer.stream.ReleaseKept();
  ExpectEnd(peer, absl::StatusCode::kOutOfRange, "truncated");
}

TEST_P(FileSenderTest, shouldSayThatTheFileWasChanged) {
  AddOwner();
  AskingPeer peer(fabric, content);
  ASSERT_NO_FATAL_FAILURE(Connect(peer));
  peer.keeps = true;
  ASSERT_NO_FATAL_FAILURE(peer.Ask(0, kFileBytes));
  ASSERT_TRUE(UntilWith(peer, [&] { return peer.pieces >= 3; }));
  const std::array<timespec, 2> times = {timespec{1, 0}, timespec{1, 0}};
  ASSERT_EQ(futimens(file.get(), times.data()), 0);
  peer.keeps = false;
  peer.stream.ReleaseKept();
  ExpectEnd(peer, absl::StatusCode::kFailedPrecondition, "changed while");
}

TEST_P(FileSenderTest, shouldNotGoOnWithAnotherFile) {
  AddOwner();
  AskingPeer peer(fabric, content);
  ASSERT_NO_FATAL_FAILURE(Connect(peer));
  SendingOwner& next = AddOwner();
  peer.keeps = true;
  ASSERT_NO_FATAL_FAILURE(peer.Ask(0, kFileBytes));
  ASSERT_TRUE(UntilWith(peer, [&] { return peer.pieces >= 3; }));
  ASSERT_EQ(rename(path().c_str(), directory.File("former").c_str()), 0);
  const FileDescriptor other(open(path().c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(write(other.get(), content.data(), content.size()),
            static_cast<ssize_t>(content.size()));
  ASSERT_EQ(HandoffWith(peer, next), absl::OkStatus());
  ExpectEnd(peer, absl::StatusCode::kFailedPrecondition, "another one");
}

TEST_P(FileSenderTest, shouldWaitForRoomInTheHeap) {
  SendingOwner& owner = AddOwner();
  AskingPeer peer(fabric, content);
  ASSERT_NO_FATAL_FAILURE(Connect(peer));
  std::vector<Buffer> taken;
  Heap& heap = owner.shard()->heap();
  for (const uint64_t bytes : {uint64_t{1} << 16, uint64_t{1} << 12, uint64_t{64}}) {
    for (auto buffer = heap.AllocateScratch(bytes); buffer.ok();
         buffer = heap.AllocateScratch(bytes)) {
      taken.push_back(*buffer);
    }
  }
  ASSERT_NO_FATAL_FAILURE(peer.Ask(0, kFileBytes));
  ASSERT_TRUE(UntilWith(peer, [&] { return owner.service().Count(Kind::kReceive) == 1; }));
  for (int i = 0; i < 100; ++i) Turn();
  EXPECT_EQ(peer.pieces, 0u);
  for (const Buffer& buffer : taken) EXPECT_EQ(heap.Free(buffer), absl::OkStatus());
  EXPECT_TRUE(UntilWith(peer, [&] { return peer.done(); }));
  ExpectNothingLeft(peer);
}

// One piece of all transfers may be read at a time.
TEST_P(FileSenderTest, shouldServeManyPeersWithLittleMemory) {
  options.most_reads = 1;
  AddOwner();
  std::deque<AskingPeer> peers;
  for (int i = 0; i < 5; ++i) {
    AskingPeer& peer = peers.emplace_back(fabric, content);
    ASSERT_NO_FATAL_FAILURE(Connect(peer));
  }
  for (AskingPeer& peer : peers) ASSERT_NO_FATAL_FAILURE(peer.Ask(1000, 60'000));
  EXPECT_TRUE(driver::testing::Pump(
      [&] {
        for (AskingPeer& peer : peers) peer.stream.Turn();
        Turn();
      },
      [&] {
        return std::all_of(peers.begin(), peers.end(),
                           [](const AskingPeer& peer) { return peer.done(); });
      }));
}

// ---------------------------------------------------------------- files that the driver holds

TEST_P(FileSenderTest, shouldGoOnWithAFileThatWasDeleted) {
  hold_from_bytes = 0;
  SendingOwner& owner = AddOwner();
  AskingPeer peer(fabric, content);
  ASSERT_NO_FATAL_FAILURE(Connect(peer));
  SendingOwner& next = AddOwner();
  peer.keeps = true;
  ASSERT_NO_FATAL_FAILURE(peer.Ask(0, kFileBytes));
  ASSERT_TRUE(UntilWith(peer, [&] { return peer.pieces >= 3; }));
  EXPECT_EQ(owner.hold_status, absl::OkStatus());
  EXPECT_THAT(owner.held(), SizeIs(1));
  ASSERT_EQ(unlink(path().c_str()), 0);
  ASSERT_EQ(HandoffWith(peer, next), absl::OkStatus());
  EXPECT_THAT(next.held(), SizeIs(1));
  peer.keeps = false;
  peer.stream.ReleaseKept();
  EXPECT_TRUE(UntilWith(peer, [&] { return peer.done(); })) << peer.next();
  ExpectNothingLeft(peer);
  ExpectNothingHeld(peer);
}

TEST_P(FileSenderTest, shouldHoldAFileUntilItsLastByteIsAcknowledged) {
  hold_from_bytes = 0;
  SendingOwner& owner = AddOwner();
  AskingPeer peer(fabric, content);
  ASSERT_NO_FATAL_FAILURE(Connect(peer));
  ASSERT_NO_FATAL_FAILURE(peer.Ask(0, kFileBytes));
  ASSERT_TRUE(UntilWith(peer, [&] {
    const bool has_begun = owner.last != nullptr || owner.sender() != nullptr;
    if (!has_begun || !owner.held().empty()) return false;
    EXPECT_NE(owner.last, nullptr) << "it was dropped while pieces were still to be staged";
    if (owner.last != nullptr) {
      EXPECT_GE(owner.last->completed_sends(), owner.last_sends);
    }
    return true;
  }));
  EXPECT_TRUE(UntilWith(peer, [&] { return peer.done(); }));
  ExpectNothingLeft(peer);
}

// The number was not committed, and the successor begins again.
TEST_P(FileSenderTest, shouldDropWhatADeadOwnerHeldAndDidNotCommit) {
  hold_from_bytes = 0;
  SendingOwner& owner = AddOwner();
  AskingPeer peer(fabric, content);
  ASSERT_NO_FATAL_FAILURE(Connect(peer));
  AddOwner();
  dies = [&](Step step) {
    if (deaths > 0 || step != Step::kAdvanced || owner.sender() == nullptr) return false;
    return owner.sender()->state().held != 0;
  };
  ASSERT_NO_FATAL_FAILURE(peer.Ask(0, kFileBytes));
  EXPECT_TRUE(UntilWith(peer, [&] { return peer.done(); })) << peer.next();
  EXPECT_EQ(deaths, 1);
  ExpectNothingLeft(peer);
  ExpectNothingHeld(peer);
}

TEST_P(FileSenderTest, shouldSendNothingBeforeTheFileIsHeld) {
  hold_from_bytes = 0;
  SendingOwner& owner = AddOwner();
  AskingPeer peer(fabric, content);
  ASSERT_NO_FATAL_FAILURE(Connect(peer));
  int looks = 0;
  dies = [&](Step step) {
    const FileSender* const sender = owner.sender();
    if (step == Step::kAdvanced && sender != nullptr && sender->state().held == 0) {
      EXPECT_EQ(sender->state().next, 0u);
      ++looks;
    }
    return false;
  };
  ASSERT_NO_FATAL_FAILURE(peer.Ask(0, kFileBytes));
  ASSERT_TRUE(UntilWith(peer, [&] { return peer.done(); })) << peer.next();
  EXPECT_EQ(owner.hold_status, absl::OkStatus());
  EXPECT_GT(looks, 0);  // nobody waits in the first one
  ExpectNothingHeld(peer);
  ExpectNothingLeft(peer);
}

// Nobody wants it any more when the keeper has answered.
TEST_P(FileSenderTest, shouldDropAFileThatIsHeldTooLate) {
  hold_from_bytes = 0;
  SendingOwner& owner = AddOwner();
  AskingPeer peer(fabric, content);
  ASSERT_NO_FATAL_FAILURE(Connect(peer));
  bool has_asked = false;
  dies = [&](Step step) {
    if (step != Step::kAdvanced || owner.sender() == nullptr) return false;
    has_asked = true;
    owner.DropSenders();
    EXPECT_THAT(owner.held(), SizeIs(1));  // the keeper has done what it was asked before
    return false;
  };
  ASSERT_NO_FATAL_FAILURE(peer.Ask(0, kFileBytes));
  ASSERT_TRUE(UntilWith(peer, [&] { return has_asked; }));
  ExpectNothingHeld(peer);
}

// A service may load transfers after OnAdopt. Their files stay when another one begins.
TEST_P(FileSenderTest, shouldDropNoFileOfAFormerOwnerBeforeTheServiceSaysWhichItHas) {
  hold_from_bytes = 0;
  SendingOwner& owner = AddOwner();
  owner.drops_lost = false;
  AskingPeer peer(fabric, content);
  ASSERT_NO_FATAL_FAILURE(Connect(peer));
  const uint64_t former =
      owner.worker()->HoldDescriptor(file.get(), HeldFiles::kTag + owner.shard()->index()).value();
  ASSERT_NO_FATAL_FAILURE(peer.Ask(0, kFileBytes));
  ASSERT_TRUE(UntilWith(peer, [&] { return peer.done() && owner.held().size() <= 1; }));
  EXPECT_THAT(owner.held(), ElementsAre(former));
  owner.reads().held_files().Adopt(*owner.shard());
  ExpectNothingHeld(peer);
  ExpectNothingLeft(peer);
}

// Another owner may have been faster.
TEST_P(FileSenderTest, shouldHoldAndDropFurtherFilesWhenOneWasDroppedAlready) {
  hold_from_bytes = 0;
  SendingOwner& owner = AddOwner();
  AskingPeer peer(fabric, content);
  ASSERT_NO_FATAL_FAILURE(Connect(peer));
  for (const bool is_first : {true, false}) {
    peer.keeps = true;
    const size_t before = peer.pieces;
    ASSERT_NO_FATAL_FAILURE(peer.Ask(0, kFileBytes));
    ASSERT_TRUE(UntilWith(peer, [&] { return peer.pieces >= before + 3; }));
    EXPECT_EQ(owner.hold_status, absl::OkStatus());
    ASSERT_THAT(owner.held(), SizeIs(1));
    if (is_first) ASSERT_EQ(owner.worker()->DropDescriptor(owner.held()[0]), absl::OkStatus());
    peer.keeps = false;
    peer.stream.ReleaseKept();
    ASSERT_TRUE(UntilWith(peer, [&] { return peer.done(); })) << peer.next();
    ExpectNothingLeft(peer);
    ExpectNothingHeld(peer);
  }
}

TEST_P(FileSenderTest, shouldLoseNoHeldFileWhenOwnersDie) {
  hold_from_bytes = 0;
  KeepStandbys();
  AskingPeer peer(fabric, content);
  ASSERT_NO_FATAL_FAILURE(Connect(peer));
  ASSERT_NO_FATAL_FAILURE(DieWhileThePeerAsks(peer, 12));
  ExpectNothingHeld(peer);
}

TEST_P(FileSenderTest, shouldGoOnUnheldWhereTheDriverHoldsNoMore) {
  hold_from_bytes = 0;
  SendingOwner& owner = AddOwner();
  AskingPeer peer(fabric, content);
  ASSERT_NO_FATAL_FAILURE(Connect(peer));
  for (int i = 0; i < 256; ++i) ASSERT_TRUE(owner.worker()->HoldDescriptor(file.get()).ok()) << i;
  ASSERT_NO_FATAL_FAILURE(peer.Ask(0, kFileBytes));
  EXPECT_TRUE(UntilWith(peer, [&] { return peer.done(); })) << peer.next();
  EXPECT_EQ(owner.hold_status.code(), absl::StatusCode::kResourceExhausted) << owner.hold_status;
  EXPECT_THAT(owner.held(), IsEmpty());
  ExpectNothingLeft(peer);
}

TEST_P(FileSenderTest, shouldDropTheFileOfAPeerThatLeaves) {
  hold_from_bytes = 0;
  SendingOwner& owner = AddOwner();
  AskingPeer peer(fabric, content);
  ASSERT_NO_FATAL_FAILURE(Connect(peer));
  peer.keeps = true;
  ASSERT_NO_FATAL_FAILURE(peer.Ask(0, kFileBytes));
  ASSERT_TRUE(UntilWith(peer, [&] { return peer.pieces >= 3; }));
  EXPECT_THAT(owner.held(), SizeIs(1));
  peer.stream.Disconnect();
  EXPECT_TRUE(UntilWith(peer, [&] {
    return owner.service().Count(Kind::kDisconnected) == 1 && owner.held().empty();
  }));
}

TEST_P(FileSenderTest, shouldLeaveToTheServiceWhatItHoldsByItself) {
  hold_from_bytes = 0;
  SendingOwner& owner = AddOwner();
  AskingPeer peer(fabric, content);
  ASSERT_NO_FATAL_FAILURE(Connect(peer));
  owner.own_held = owner.worker()->HoldDescriptor(file.get()).value();
  SendingOwner& next = AddOwner();
  peer.keeps = true;
  ASSERT_NO_FATAL_FAILURE(peer.Ask(0, kFileBytes));
  ASSERT_TRUE(UntilWith(peer, [&] { return peer.pieces >= 3; }));
  ASSERT_EQ(unlink(path().c_str()), 0);
  ASSERT_EQ(HandoffWith(peer, next), absl::OkStatus());
  peer.keeps = false;
  peer.stream.ReleaseKept();
  EXPECT_TRUE(UntilWith(peer, [&] { return peer.done(); })) << peer.next();
  ExpectNothingLeft(peer);
  ExpectNothingHeld(peer);
  EXPECT_THAT(next.worker()->HeldDescriptors().value(), ElementsAre(owner.own_held));
}

// ---------------------------------------------------------------- memfds that are registered

TEST_P(FileSenderTest, shouldSendAMemfdWithoutReadingIt) {
  SendMemory({});
  SendingOwner& owner = AddOwner();
  AskingPeer peer(fabric, content);
  ASSERT_NO_FATAL_FAILURE(Connect(peer));
  for (const auto& [offset, length] : std::vector<std::pair<uint64_t, uint64_t>>{
           {0, kFileBytes}, {0, 1}, {4095, 2}, {kFileBytes - 1, 1}, {123, 100'000}}) {
    SCOPED_TRACE(offset);
    ASSERT_NO_FATAL_FAILURE(peer.Ask(offset, length));
    ASSERT_TRUE(UntilWith(peer, [&] { return peer.done(); }));
    EXPECT_EQ(peer.crc(), Crc32c(0, content.data() + offset, length));
    EXPECT_EQ(owner.region_status, absl::OkStatus());
  }
  ExpectNothingLeft(peer);
  EXPECT_EQ(owner.reads().statistics().reads, 0u);
  EXPECT_EQ(owner.regions->statistics().misses, 1u);
  EXPECT_EQ(owner.regions->statistics().hits, 4u);
  // No lease is left when the last sends are acknowledged.
  EXPECT_TRUE(UntilWith(peer, [&] { return owner.regions->InvalidateAll().ok(); }));
  EXPECT_THAT(owner.worker()->Regions(), IsEmpty());
}

TEST_P(FileSenderTest, shouldGoOnWithAMemfdWhenOwnersDie) {
  SendMemory({});
  hold_from_bytes = 0;
  KeepStandbys();
  AskingPeer peer(fabric, content);
  ASSERT_NO_FATAL_FAILURE(Connect(peer));
  ASSERT_NO_FATAL_FAILURE(DieWhileThePeerAsks(peer, 12));
  ExpectNothingHeld(peer);
  for (const SendingOwner& owner : owners) EXPECT_EQ(owner.region_status, absl::OkStatus());
}

// To register memory with an RDMA device changes its file's time.
TEST_P(FileSenderTest, shouldGoOnWithAMemfdWhoseTimeChanges) {
  SendMemory({});
  AddOwner();
  AskingPeer peer(fabric, content);
  ASSERT_NO_FATAL_FAILURE(Connect(peer));
  SendingOwner& next = AddOwner();
  peer.keeps = true;
  ASSERT_NO_FATAL_FAILURE(peer.Ask(0, kFileBytes));
  ASSERT_TRUE(UntilWith(peer, [&] { return peer.pieces >= 3; }));
  std::array<timespec, 2> times = {timespec{1, 0}, timespec{1, 0}};
  ASSERT_EQ(futimens(memory.fd(), times.data()), 0);
  ASSERT_EQ(HandoffWith(peer, next), absl::OkStatus());
  times[1].tv_sec = 2;
  ASSERT_EQ(futimens(memory.fd(), times.data()), 0);
  peer.keeps = false;
  peer.stream.ReleaseKept();
  EXPECT_TRUE(UntilWith(peer, [&] { return peer.done(); })) << peer.next();
  ExpectNothingLeft(peer);
}

TEST_P(FileSenderTest, shouldReadAMemfdThatTheCacheRefuses) {
  SendMemory({.most_bytes = 4096});
  SendingOwner& owner = AddOwner();
  AskingPeer peer(fabric, content);
  ASSERT_NO_FATAL_FAILURE(Connect(peer));
  ASSERT_NO_FATAL_FAILURE(peer.Ask(0, kFileBytes));
  ASSERT_TRUE(UntilWith(peer, [&] { return peer.done(); }));
  EXPECT_THAT(owner.region_status.ToString(), HasSubstr("most_bytes"));
  EXPECT_GT(owner.reads().statistics().reads, 0u);
  ExpectNothingLeft(peer);
}

// Nobody is asked to register it.
TEST_P(FileSenderTest, shouldReadAMemfdThatIsSealedAgainstWriting) {
  SendMemory({});
  ASSERT_EQ(fcntl(memory.fd(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE), 0);
  SendingOwner& owner = AddOwner();
  AskingPeer peer(fabric, content);
  ASSERT_NO_FATAL_FAILURE(Connect(peer));
  ASSERT_NO_FATAL_FAILURE(peer.Ask(0, kFileBytes));
  ASSERT_TRUE(UntilWith(peer, [&] { return peer.done(); }));
  EXPECT_THAT(owner.region_status.ToString(), HasSubstr("sealed against writing"));
  EXPECT_EQ(owner.regions->statistics().misses, 0u);
  EXPECT_GT(owner.reads().statistics().reads, 0u);
  ExpectNothingLeft(peer);
}

TEST_P(FileSenderTest, shouldReadAFileThatIsNoMemfd) {
  regions.emplace();
  SendingOwner& owner = AddOwner();
  AskingPeer peer(fabric, content);
  ASSERT_NO_FATAL_FAILURE(Connect(peer));
  ASSERT_NO_FATAL_FAILURE(peer.Ask(0, kFileBytes));
  ASSERT_TRUE(UntilWith(peer, [&] { return peer.done(); }));
  EXPECT_THAT(owner.region_status.ToString(), HasSubstr("no memfd"));
  EXPECT_GT(owner.reads().statistics().reads, 0u);
  ExpectNothingLeft(peer);
}

}  // namespace
}  // namespace baton
