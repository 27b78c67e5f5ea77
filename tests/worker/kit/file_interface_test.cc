// Streams and files in the C interface. Linked with each kind of worker.
#include <baton/baton.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "lib/base/file_descriptor.h"
#include "lib/stream/file_pieces.h"
#include "tests/lib/driver/raw_peer.h"
#include "tests/lib/stream/stream_peer.h"
#include "tests/lib/verbs/fabric.h"
#include "tests/worker/kit/c_worker.h"
#include "worker/held_files.h"

namespace baton {
namespace {

using testing::CWorker;
using ::testing::HasSubstr;
using testing::kDepth;
using testing::StreamPeer;

constexpr uint32_t kFormat = 1;
constexpr uint32_t kRingBytes = 4096;  // for requests
constexpr uint16_t kWindow = 8;
constexpr uint32_t kFileBytes = 1'100'001;  // as many as the library would have held
constexpr uint64_t kTransfer = 9;

// The state of a connection.
struct Account {
  uint8_t stream[BATON_STREAM_STATE_BYTES];
  baton_file_transfer transfer;
};

// Returns whether the driver holds a file for the library, of the only shard.
bool IsOneHeld(const CWorker& worker) {
  bool is_held = false;
  const auto note = [](void* context, uint64_t) { *static_cast<bool*>(context) = true; };
  EXPECT_EQ(baton_for_each_held_descriptor(worker.handle(), HeldFiles::kTag, note, &is_held),
            BATON_OK)
      << baton_error();
  return is_held;
}

// Answers each message with itself, and then sends the file.
class Sender {
 public:
  explicit Sender(const std::string& path) : path_(path) {
    worker.on_adopt = [this](baton_shard* shard) { Adopt(shard); };
    worker.on_completion = [this](baton_shard*, const baton_completion& done) { Handle(done); };
    worker.on_release = [this](baton_shard*) { Forget(); };
  }

  bool resumed = false;
  uint64_t held = 0;  // of the last transfer that was resumed

 private:
  static Account AccountOf(const baton_connection* connection) {
    Account account = {};
    size_t length = 0;
    const uint8_t* const state = baton_connection_state(connection, &length);
    if (length == sizeof(account)) std::memcpy(&account, state, sizeof(account));
    return account;
  }
  static baton_stream* StreamOf(baton_connection* connection, const Account& account) {
    baton_stream* stream = nullptr;
    EXPECT_EQ(baton_load_stream(connection, account.stream, BATON_STREAM_STATE_BYTES, &stream),
              BATON_OK)
        << baton_error();
    return stream;
  }
  // Stages the state, and forgets the stream.
  static void Save(baton_connection* connection, baton_stream* stream, Account account) {
    size_t length = 0;
    std::memcpy(account.stream, baton_stream_state(stream, &length), sizeof(account.stream));
    EXPECT_EQ(length, sizeof(account.stream));
    EXPECT_EQ(baton_set_state(baton_connection_shard(connection), connection, &account,
                              sizeof(account), kFormat),
              BATON_OK)
        << baton_error();
    baton_forget_stream(stream);
  }

  void Adopt(baton_shard* shard) {
    baton_for_each_connection(
        shard,
        [](void* context, baton_connection* one) { static_cast<Sender*>(context)->Resume(one); },
        this);
    EXPECT_EQ(baton_free_lost(
                  shard,
                  [](void* context, const baton_buffer* buffer) {
                    return static_cast<Sender*>(context)->rings_.count(buffer->offset) > 0;
                  },
                  this),
              BATON_OK)
        << baton_error();
  }
  void Resume(baton_connection* connection) {
    const Account account = AccountOf(connection);
    baton_stream* const stream = StreamOf(connection, account);
    rings_.insert(baton_stream_ring(stream).offset);
    baton_forget_stream(stream);
    if (account.transfer.next == account.transfer.end) return;
    connection_ = connection;
    held = account.transfer.held;
    WithFile([&](const baton_file& file) {
      EXPECT_EQ(baton_resume_file(worker.handle(), connection, &file, &account.transfer, &sender_),
                BATON_OK)
          << baton_error();
    });
    resumed = true;
  }

  void Handle(const baton_completion& done) {
    if (done.kind == BATON_CONNECT_REQUEST) {
      baton_stream* stream = nullptr;
      ASSERT_EQ(baton_accept_stream(done.connection, kRingBytes, kWindow, &stream), BATON_OK)
          << baton_error();
      return Save(done.connection, stream, {});
    }
    if (done.kind == BATON_RECEIVE || done.kind == BATON_SEND) {
      return Advance(done.connection, &done);
    }
    if (done.kind == BATON_ESTABLISHED) return;
    Forget();
    baton_stream* const stream = StreamOf(done.connection, AccountOf(done.connection));
    EXPECT_EQ(baton_close_stream(stream), BATON_OK) << baton_error();
    baton_forget_stream(stream);
  }

  // Goes on after a completion, or without one, when a read has completed.
  void Advance(baton_connection* connection, const baton_completion* done) {
    Account account = AccountOf(connection);
    baton_stream* const stream = StreamOf(connection, account);
    if (done != nullptr) {
      baton_stream_event event = {};
      event.size = sizeof(event);
      EXPECT_EQ(baton_stream_completed(stream, done, &event), BATON_OK) << baton_error();
      if (event.has_message) Begin(connection, stream, event);
    }
    if (sender_ != nullptr) {
      EXPECT_EQ(baton_advance_file(sender_, stream, &account.transfer), BATON_OK) << baton_error();
      if (account.transfer.next == account.transfer.end) Forget();
    }
    Save(connection, stream, account);
  }

  void Begin(baton_connection* connection, baton_stream* stream, const baton_stream_event& event) {
    const uint8_t* const at = worker.buffers() + event.message.offset;
    const std::vector<uint8_t> message(at, at + event.message.length);
    EXPECT_EQ(baton_stream_send_copy(stream, message.data(), message.size()), BATON_OK)
        << baton_error();
    EXPECT_EQ(baton_stream_release(stream, &event), BATON_OK) << baton_error();
    connection_ = connection;
    WithFile([&](const baton_file& file) {
      baton_file_range range = {};
      range.size = sizeof(range);
      range.transfer = kTransfer;
      range.length = kFileBytes + 1;
      EXPECT_EQ(baton_send_file(worker.handle(), connection, &file, &range, &sender_),
                BATON_OUT_OF_RANGE);
      range.length = kFileBytes;
      EXPECT_EQ(baton_hold_descriptor(worker.handle(), file.fd, 0, &range.held), BATON_OK);
      EXPECT_EQ(baton_send_file(worker.handle(), connection, &file, &range, &sender_), BATON_OK)
          << baton_error();
    });
    EXPECT_FALSE(IsOneHeld(worker));  // the application holds it
  }

  template <typename Use>  // (const baton_file&)
  void WithFile(const Use& use) {
    const FileDescriptor open_file(open(path_.c_str(), O_RDONLY | O_CLOEXEC));
    baton_file file = {};
    file.size = sizeof(file);
    file.fd = open_file.get();
    file.wake = [](void* context) {
      auto* const sender = static_cast<Sender*>(context);
      sender->Advance(sender->connection_, nullptr);
    };
    file.context = this;
    use(file);
  }
  void Forget() {
    baton_forget_file(sender_);
    sender_ = nullptr;
  }

  const std::string path_;
  std::set<uint64_t> rings_;
  baton_connection* connection_ = nullptr;  // of the transfer
  baton_file_sender* sender_ = nullptr;

 public:
  CWorker worker;  // detached first
};

class FileInterfaceTest : public testing::CWorkerFixture {
 protected:
  void StartService(bool outside_effects = true) {
    Start([=](v1::ServiceConfig* service) {
      service->set_send_queue_depth(kDepth);
      service->set_receive_queue_depth(kDepth);
      service->set_connection_state_bytes(256);
      service->set_shard_heap_bytes(1 << 20);
      service->set_outside_effects(outside_effects);
    });
  }
  std::string MakeFile() {
    content_.resize(kFileBytes);
    std::iota(content_.begin(), content_.end(), uint8_t{0});
    std::string path = keeper_.directory().File("file");
    const FileDescriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    EXPECT_EQ(write(file.get(), content_.data(), content_.size()),
              static_cast<ssize_t>(content_.size()));
    return path;
  }
  void Attach(CWorker& worker) {
    ASSERT_NO_FATAL_FAILURE(worker.Attach(keeper_.socket()));
    baton_file_options options = {};
    options.size = sizeof(options);
    options.piece_bytes = 4096;
    ASSERT_EQ(baton_open_files(worker.handle(), &options), BATON_OK) << baton_error();
    EXPECT_EQ(baton_open_files(worker.handle(), nullptr), BATON_ALREADY_EXISTS);
    ASSERT_EQ(baton_ready(worker.handle()), BATON_OK) << baton_error();
  }

  void SendOverAReplacement(bool is_deleted);

  std::vector<uint8_t> content_;
};

// `is_deleted`: before the successor goes on, which has no file to open then.
void FileInterfaceTest::SendOverAReplacement(bool is_deleted) {
  ASSERT_NO_FATAL_FAILURE(StartService());
  const std::string path = MakeFile();
  Sender first(path), second(path);
  ASSERT_NO_FATAL_FAILURE(Attach(first.worker));
  ASSERT_TRUE(Until({&first.worker}, nullptr, [&] { return first.worker.shard != nullptr; }));

  StreamPeer peer(verbs::testing::FabricUnderTest(), /*ring_bytes=*/64 << 10);
  stream::PieceChecker checker(kTransfer, 0, kFileBytes);
  std::string answer;
  peer.on_message = [&](absl::Span<const uint8_t> message) {
    if (!stream::IsPiece(message)) {
      answer.assign(message.begin(), message.end());
      return true;
    }
    const auto piece = checker.Check(message);
    EXPECT_TRUE(piece.ok()) << piece.status();
    EXPECT_TRUE(piece.ok() && std::equal(piece->bytes.begin(), piece->bytes.end(),
                                         content_.begin() + static_cast<ptrdiff_t>(piece->offset)));
    return true;
  };
  const auto turn = [&] { peer.Turn(); };
  peer.Connect(first.worker.Listen());
  ASSERT_TRUE(Until({&first.worker}, turn, [&] { return peer.established; }));
  constexpr std::string_view kAsk = "the file, please";
  ASSERT_EQ(peer.Send({reinterpret_cast<const uint8_t*>(kAsk.data()), kAsk.size()}),
            absl::OkStatus());
  ASSERT_TRUE(Until({&first.worker}, turn, [&] { return checker.next() > 0; }));
  ASSERT_FALSE(checker.done());
  EXPECT_EQ(answer, kAsk);

  if (is_deleted) ASSERT_EQ(unlink(path.c_str()), 0);
  ASSERT_NO_FATAL_FAILURE(Attach(second.worker));
  first.worker.Detach();
  ASSERT_TRUE(Until({&second.worker}, turn, [&] { return checker.done(); }));
  EXPECT_TRUE(second.resumed);
  EXPECT_NE(second.held, 0u);
  peer.Disconnect();
  ASSERT_TRUE(Until({&second.worker}, turn, [&] { return peer.disconnected; }));
}

TEST_F(FileInterfaceTest, shouldSendAFileOverTheReplacementOfItsWorker) {
  SendOverAReplacement(/*is_deleted=*/false);
}

TEST_F(FileInterfaceTest, shouldGoOnWithAFileThatTheDriverHolds) {
  SendOverAReplacement(/*is_deleted=*/true);
}

// It dies after it has handed a file to the driver, and before it has committed the number.
TEST_F(FileInterfaceTest, shouldDropTheFileThatADeadWorkerHasNotCommitted) {
  constexpr uint64_t kTag = uint64_t{0x73656c6966} << 24;  // the library's, of shard 0
  ASSERT_NO_FATAL_FAILURE(StartService());
  const std::string path = MakeFile();
  Sender first(path), second(path);
  ASSERT_NO_FATAL_FAILURE(Attach(first.worker));
  ASSERT_TRUE(Until({&first.worker}, nullptr, [&] { return first.worker.shard != nullptr; }));
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  uint64_t lost = 0;
  ASSERT_EQ(baton_hold_descriptor(first.worker.handle(), file.get(), kTag, &lost), BATON_OK)
      << baton_error();
  ASSERT_NO_FATAL_FAILURE(Attach(second.worker));
  first.worker.Detach();
  EXPECT_TRUE(Until({&second.worker}, nullptr, [&] {
    int fd = -1;
    const int taken = baton_take_descriptor(second.worker.handle(), lost, &fd);
    const FileDescriptor held(fd);
    return second.worker.shard != nullptr && taken == BATON_NOT_FOUND;
  }));
}

TEST_F(FileInterfaceTest, shouldOpenNoRingForAPeerWithoutAGreeting) {
  ASSERT_NO_FATAL_FAILURE(StartService());
  CWorker worker;
  int code = BATON_OK;
  baton_heap_statistics before = {}, after = {};
  before.size = after.size = sizeof(after);
  worker.on_completion = [&](baton_shard* shard, const baton_completion& done) {
    if (done.kind != BATON_CONNECT_REQUEST) return;
    EXPECT_EQ(baton_get_heap_statistics(shard, &before), BATON_OK) << baton_error();
    baton_stream* stream = nullptr;
    code = baton_accept_stream(done.connection, kRingBytes, kWindow, &stream);
    EXPECT_THAT(baton_error(), HasSubstr("greeting"));
    EXPECT_EQ(baton_get_heap_statistics(shard, &after), BATON_OK) << baton_error();
    EXPECT_EQ(baton_reject(shard, done.connection, nullptr, 0), BATON_OK) << baton_error();
  };
  ASSERT_NO_FATAL_FAILURE(Attach(worker));
  ASSERT_TRUE(Until({&worker}, nullptr, [&] { return worker.shard != nullptr; }));
  driver::testing::RawPeer peer;
  peer.Connect(worker.Listen(), "hello");
  ASSERT_TRUE(Until(
      {&worker}, [&] { peer.Turn(); }, [&] { return peer.rejected; }));
  EXPECT_EQ(code, BATON_INVALID_ARGUMENT);
  EXPECT_EQ(after.free, before.free);
}

// It may run the destructors of its copy of a program.
TEST_F(FileInterfaceTest, shouldDetachInAForkedChildAndLeaveTheReadsToItsParent) {
  ASSERT_NO_FATAL_FAILURE(StartService());
  CWorker worker;
  ASSERT_NO_FATAL_FAILURE(Attach(worker));
  ASSERT_TRUE(Until({&worker}, nullptr, [&] { return worker.shard != nullptr; }));
  const pid_t child = fork();
  if (child == 0) {
    worker.Detach();
    _exit(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  worker.Poll();
}

TEST_F(FileInterfaceTest, shouldSayWhatIsWrong) {
  ASSERT_NO_FATAL_FAILURE(StartService(/*outside_effects=*/false));
  CWorker worker;
  ASSERT_NO_FATAL_FAILURE(worker.Attach(keeper_.socket()));
  EXPECT_EQ(baton_open_files(worker.handle(), nullptr), BATON_FAILED_PRECONDITION);
  EXPECT_THAT(baton_error(), HasSubstr("outside_effects"));
  baton_file_options options = {};
  options.size = sizeof(options);
  options.depth = 65;
  EXPECT_EQ(baton_open_files(worker.handle(), &options), BATON_INVALID_ARGUMENT);
  EXPECT_THAT(baton_error(), HasSubstr("depth"));

  baton_file file = {};
  file.size = sizeof(file);
  baton_file_range range = {};
  baton_file_sender* sender = nullptr;
  EXPECT_EQ(baton_send_file(worker.handle(), nullptr, &file, &range, &sender),
            BATON_INVALID_ARGUMENT);
  EXPECT_THAT(baton_error(), HasSubstr("range: its size"));
  range.size = sizeof(range);
  EXPECT_EQ(baton_send_file(worker.handle(), nullptr, &file, &range, &sender),
            BATON_INVALID_ARGUMENT);
  EXPECT_THAT(baton_error(), HasSubstr("wake"));
  file.wake = [](void*) {};
  EXPECT_EQ(baton_send_file(worker.handle(), nullptr, &file, &range, &sender),
            BATON_FAILED_PRECONDITION);
  EXPECT_THAT(baton_error(), HasSubstr("baton_open_files"));
  EXPECT_EQ(sender, nullptr);
  baton_forget_file(nullptr);
  baton_forget_stream(nullptr);
}

}  // namespace
}  // namespace baton
