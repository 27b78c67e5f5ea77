#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "lib/base/file_descriptor.h"
#include "lib/channel/message_channel.h"
#include "proto/baton/v1/worker.grpc.pb.h"
#include "supervisor/cli/client.h"
#include "supervisor/control/config.h"
#include "supervisor/control/worker_service.h"
#include "tests/harness/wait_until.h"
#include "tests/supervisor/control/control_fixture.h"

namespace baton {

// A client of gRPC that never finishes its message, below gRPC: HTTP/2 frames of its own making.
//
// Opens `streams` calls of `method` on one connection to `socket_path`, announces a message of
// `announced` bytes on each, and sends all but the last byte of each, as far as the server takes
// them, until it has ended every stream or has them all. Returns the most bytes of messages that it
// had taken of streams that it had not ended; -1: it could not be talked to. Uses nothing of
// gRPC's: may be called in a forked child.
int64_t SendUnfinished(const std::string& socket_path, const std::string& method, int streams,
                       uint32_t announced);

namespace {

constexpr int64_t kMaxFramePayload = 16384;
constexpr size_t kFrameHeaderBytes = 9;
constexpr int kSilenceSeconds = 30;

enum FrameType : uint8_t {
  kData = 0,
  kHeaders = 1,
  kResetStream = 3,
  kSettings = 4,
  kPing = 6,
  kGoAway = 7,
  kWindowUpdate = 8,
};
constexpr uint8_t kAcknowledged = 1;
constexpr uint8_t kEndStream = 1;
constexpr uint8_t kEndHeaders = 4;
constexpr int kInitialWindowSize = 4;

std::string Number(uint64_t value, size_t bytes) {
  std::string text(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) {
    text[bytes - 1 - i] = static_cast<char>(value >> (8 * i));
  }
  return text;
}

uint32_t NumberAt(const std::string& text, size_t at, size_t bytes) {
  uint32_t value = 0;
  for (size_t i = 0; i < bytes; ++i) value = value << 8 | static_cast<uint8_t>(text[at + i]);
  return value;
}

std::string Frame(FrameType type, uint8_t flags, uint32_t stream, const std::string& payload) {
  return Number(payload.size(), 3) + Number(type, 1) + Number(flags, 1) + Number(stream, 4) +
         payload;
}

// A literal of HPACK that is not put into its table.
std::string Header(const std::string& name, const std::string& value) {
  return Number(0, 1) + Number(name.size(), 1) + name + Number(value.size(), 1) + value;
}

struct Stream {
  int64_t window = 0;  // beside the initial one
  int64_t sent = 0;
};

class Client {
 public:
  explicit Client(FileDescriptor socket) : socket_(std::move(socket)) {
    const timeval limit = {kSilenceSeconds, 0};
    setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  }

  bool Open(const std::string& method, int streams) {
    std::string bytes = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + Frame(kSettings, 0, 0, "");
    for (int i = 0; i < streams; ++i) {
      const uint32_t id = 1 + 2 * static_cast<uint32_t>(i);
      bytes += Frame(kHeaders, kEndHeaders, id,
                     "\x83\x86" + Header(":path", method) + Header(":authority", "x") +
                         Header("content-type", "application/grpc") + Header("te", "trailers"));
      streams_[id];
    }
    return Write(bytes);
  }

  int64_t Flood(uint32_t announced) {
    const std::string zeros(kMaxFramePayload, '\0');
    const int64_t all = int64_t{announced} + 4;  // with the message's header, without its last byte
    for (;;) {
      bool unfinished = false;
      for (auto& [id, stream] : streams_) {
        for (;;) {
          const int64_t bytes = std::min({window_, initial_window_ + stream.window - stream.sent,
                                          kMaxFramePayload, all - stream.sent});
          if (bytes <= 0) break;
          std::string payload = zeros.substr(0, static_cast<size_t>(bytes));
          if (stream.sent == 0) payload.replace(0, 5, Number(0, 1) + Number(announced, 4));
          if (!Write(Frame(kData, 0, id, payload))) return most_taken_;
          stream.sent += bytes;
          window_ -= bytes;
          taken_ += bytes;
          most_taken_ = std::max(most_taken_, taken_);
        }
        unfinished = unfinished || stream.sent < all;
      }
      if (!unfinished || !ReadFrame()) return most_taken_;
    }
  }

 private:
  bool Write(const std::string& bytes) {
    for (size_t done = 0; done < bytes.size();) {
      const ssize_t sent =
          send(socket_.get(), bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL);
      if (sent <= 0) return false;
      done += static_cast<size_t>(sent);
    }
    return true;
  }

  bool Read(size_t bytes, std::string* text) {
    text->resize(bytes);
    return bytes == 0 ||
           recv(socket_.get(), text->data(), bytes, MSG_WAITALL) == static_cast<ssize_t>(bytes);
  }

  // False: the connection is over, or nothing comes any more.
  bool ReadFrame() {
    std::string header, payload;
    if (!Read(kFrameHeaderBytes, &header)) return false;
    if (!Read(NumberAt(header, 0, 3), &payload)) return false;
    const uint8_t type = static_cast<uint8_t>(header[3]), flags = static_cast<uint8_t>(header[4]);
    const uint32_t id = NumberAt(header, 5, 4);
    if (type == kSettings && (flags & kAcknowledged) == 0) {
      for (size_t at = 0; at + 6 <= payload.size(); at += 6) {
        if (NumberAt(payload, at, 2) == kInitialWindowSize) {
          initial_window_ = NumberAt(payload, at + 2, 4);
        }
      }
      return Write(Frame(kSettings, kAcknowledged, 0, ""));
    }
    if (type == kPing && (flags & kAcknowledged) == 0) {
      return Write(Frame(kPing, kAcknowledged, 0, payload));
    }
    if (type == kWindowUpdate) {
      if (id == 0) window_ += NumberAt(payload, 0, 4);
      const auto stream = streams_.find(id);
      if (stream != streams_.end()) stream->second.window += NumberAt(payload, 0, 4);
    }
    if (type == kResetStream || (type == kHeaders && (flags & kEndStream) != 0)) {
      const auto ended = streams_.find(id);
      if (ended != streams_.end()) {
        taken_ -= ended->second.sent;
        streams_.erase(ended);
      }
    }
    return type != kGoAway && !streams_.empty();
  }

  const FileDescriptor socket_;
  int64_t window_ = 65535;  // of the connection
  int64_t initial_window_ = 65535;
  int64_t taken_ = 0;  // of the streams that have not ended
  int64_t most_taken_ = 0;
  std::map<uint32_t, Stream> streams_;
};

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Request = internal::ManagementRequest;

v1::AttachRequest Hello(const std::string& token, const std::string& service = "kv",
                        uint32_t protocol_version = 1) {
  v1::AttachRequest request;
  request.mutable_hello()->set_service(service);
  request.mutable_hello()->set_token(token);
  request.mutable_hello()->mutable_version()->set_protocol_version(protocol_version);
  return request;
}

// One worker's end.
struct Worker {
  explicit Worker(const std::string& socket)
      : stub(v1::WorkerService::NewStub(grpc::CreateCustomChannel(
            "unix:" + socket, grpc::InsecureChannelCredentials(), OwnConnection()))),
        stream(stub->Attach(&context)) {}

  static grpc::ChannelArguments OwnConnection() {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return arguments;
  }

  // How the stream ends after `request`.
  grpc::Status End(const v1::AttachRequest& request) {
    stream->Write(request);
    v1::AttachResponse response;
    while (stream->Read(&response)) {
    }
    return stream->Finish();
  }

  grpc::ClientContext context;
  std::unique_ptr<v1::WorkerService::Stub> stub;
  std::unique_ptr<grpc::ClientReaderWriter<v1::AttachRequest, v1::AttachResponse>> stream;
};

class WorkerServiceTest : public ControlFixture {
 protected:
  std::unique_ptr<Worker> Connect() {
    return std::make_unique<Worker>(ControlSocketPath(state_dir_));
  }

  // A worker that was welcomed.
  std::unique_ptr<Worker> Attach(const std::string& token) {
    auto worker = Connect();
    worker->stream->Write(Hello(token));
    v1::AttachResponse response;
    EXPECT_TRUE(worker->stream->Read(&response)) << worker->stream->Finish().error_message();
    EXPECT_TRUE(response.has_welcome());
    return worker;
  }

  std::unique_ptr<OperatorClient> Operator() {
    auto client = OperatorClient::Connect(OperatorSocketPath(state_dir_), 20);
    EXPECT_TRUE(client.ok()) << client.status();
    return *std::move(client);
  }

  absl::Status Stop(uint64_t worker_id, uint32_t timeout_ms = 0) {
    v1::StopWorkerRequest request;
    request.set_service("kv");
    request.set_worker_id(worker_id);
    request.set_timeout_ms(timeout_ms);
    return Operator()->Ask(&Operator::StopWorker, request).status();
  }

  v1::Worker Describe(uint64_t worker_id) {
    v1::GetWorkerRequest request;
    request.set_service("kv");
    request.set_worker_id(worker_id);
    const auto response = Operator()->Ask(&Operator::GetWorker, request);
    EXPECT_TRUE(response.ok()) << response.status();
    return response.ok() ? response->worker() : v1::Worker();
  }

  bool WaitForStream(uint64_t worker_id, bool open) {
    return keeper_->WaitForRequest([=](const Request& r) {
      return r.has_control_stream() && r.control_stream().worker_id() == worker_id &&
             r.control_stream().open() == open;
    });
  }
};

TEST_F(WorkerServiceTest, WelcomesAWorkerAndTellsTheKeeper) {
  keeper_->AddToken(WorkerToken("t"), 2);
  auto worker = Connect();
  worker->stream->Write(Hello(WorkerToken("t")));
  v1::AttachResponse response;
  ASSERT_TRUE(worker->stream->Read(&response));
  EXPECT_EQ(response.welcome().worker_id(), 2u);
  EXPECT_EQ(response.welcome().version().protocol_version(), 1u);
  EXPECT_TRUE(WaitForStream(2, true));
  v1::AttachRequest health;
  health.mutable_health()->set_healthy(false);
  health.mutable_health()->set_detail("disk full");
  EXPECT_TRUE(worker->stream->Write(health));
  worker->stream->WritesDone();
  EXPECT_TRUE(worker->stream->Finish().ok());
  EXPECT_TRUE(WaitForStream(2, false));
}

TEST_F(WorkerServiceTest, ATokenOpensOneStream) {
  keeper_->AddToken(WorkerToken("t"), 2);
  const auto worker = Attach(WorkerToken("t"));
  for (const char* token : {"t", "unknown", ""}) {
    const grpc::Status status = Connect()->End(Hello(WorkerToken(token)));
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED);
    EXPECT_EQ(status.error_message(), "the token is unknown or used: ask the keeper for a new one");
  }
  worker->context.TryCancel();
}

TEST_F(WorkerServiceTest, AnotherProtocolVersionIsRefusedWithBothNamed) {
  keeper_->AddToken(WorkerToken("t"), 2);
  const grpc::Status status = Connect()->End(Hello(WorkerToken("t"), "kv", 7));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("version 7"));
  EXPECT_THAT(status.error_message(), HasSubstr("speaks 1"));
  Attach(WorkerToken("t"))->context.TryCancel();  // the token was not spent on it
}

TEST_F(WorkerServiceTest, AnUnknownServiceIsNotFoundAndTheKnownAreNamed) {
  const grpc::Status status = Connect()->End(Hello(WorkerToken("t"), "shop"));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(status.error_message(), HasSubstr("kv, nvme"));
}

TEST_F(WorkerServiceTest, AKeeperThatIsNotThereIsUnavailable) {
  const grpc::Status status = Connect()->End(Hello(WorkerToken("t"), "nvme"));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("nvme.keeper.sock"));
}

TEST_F(WorkerServiceTest, HelloComesFirst) {
  v1::AttachRequest health;
  health.mutable_health()->set_healthy(true);
  EXPECT_EQ(Connect()->End(health).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(WorkerServiceTest, ANewStreamOfAWorkerEndsItsFormerOne) {
  keeper_->AddToken(WorkerToken("a"), 2);
  keeper_->AddToken(WorkerToken("b"), 2);
  const auto former = Attach(WorkerToken("a"));
  const auto present = Attach(WorkerToken("b"));
  v1::AttachResponse response;
  EXPECT_FALSE(former->stream->Read(&response));
  EXPECT_EQ(former->stream->Finish().error_code(), grpc::StatusCode::ABORTED);
  present->context.TryCancel();
  EXPECT_FALSE(present->stream->Read(&response));
  EXPECT_TRUE(WaitForStream(2, false));
  // The end of the former one was not told as that of the worker.
  EXPECT_EQ(keeper_->CountRequests([](const Request& r) {
    return r.has_control_stream() && !r.control_stream().open();
  }),
            1u);
}

TEST_F(WorkerServiceTest, AHandoffIsAnnouncedToItsOwnersOnly) {
  keeper_->AddToken(WorkerToken("a"), 1);
  keeper_->AddToken(WorkerToken("b"), 2);
  const auto owner = Attach(WorkerToken("a"));
  const auto other = Attach(WorkerToken("b"));
  v1::HandoffRequest request;
  request.set_service("kv");
  ASSERT_TRUE(Operator()->Ask(&Operator::Handoff, request).ok());
  v1::AttachResponse response;
  ASSERT_TRUE(owner->stream->Read(&response));
  EXPECT_THAT(response.handoff().shards(), ElementsAre(0));
  control_.reset();  // ends both streams
  EXPECT_FALSE(other->stream->Read(&response));
}

TEST_F(WorkerServiceTest, AKeeperThatIsReachedAnewHearsOfOpenStreams) {
  keeper_->AddToken(WorkerToken("t"), 2);
  const auto worker = Attach(WorkerToken("t"));
  ASSERT_TRUE(WaitForStream(2, true));
  keeper_->Stop();
  keeper_->Start();
  EXPECT_TRUE(keeper_->WaitForRequest(
      [](const Request& r) { return r.has_control_stream() && r.control_stream().open(); }, 2));
  worker->context.TryCancel();
}

TEST_F(WorkerServiceTest, AKeeperThatHasForgottenAWorkerEndsItsStream) {
  keeper_->AddToken(WorkerToken("t"), 2);
  const auto worker = Attach(WorkerToken("t"));
  ASSERT_TRUE(WaitForStream(2, true));
  keeper_->Stop();
  keeper_->ForgetWorkers(true);
  keeper_->Start();
  v1::AttachResponse response;
  EXPECT_FALSE(worker->stream->Read(&response));
  EXPECT_EQ(worker->stream->Finish().error_code(), grpc::StatusCode::ABORTED);
}

TEST_F(WorkerServiceTest, AWorkerIsAskedToEndAndItsEndIsWaitedFor) {
  keeper_->AddToken(WorkerToken("a"), 1);
  keeper_->AddToken(WorkerToken("b"), 2);
  const auto other = Attach(WorkerToken("a"));
  const auto worker = Attach(WorkerToken("b"));
  auto stopped = std::async(std::launch::async, [&] { return Stop(2); });
  v1::AttachResponse response;
  ASSERT_TRUE(worker->stream->Read(&response));
  EXPECT_EQ(response.shutdown().reason(), "an operator asked for it");
  // Not before the keeper knows it no more; losing its stream is not enough.
  worker->stream->WritesDone();
  EXPECT_TRUE(worker->stream->Finish().ok());
  EXPECT_EQ(stopped.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
  internal::Description without = KvDescription();
  without.mutable_workers()->RemoveLast();
  keeper_->SetDescription(without);
  EXPECT_TRUE(stopped.get().ok());
  other->context.TryCancel();
  EXPECT_FALSE(other->stream->Read(&response));  // nobody asked it
}

TEST_F(WorkerServiceTest, AnotherProcessUnderTheNumberOfTheStoppedWorkerIsNotIt) {
  keeper_->AddToken(WorkerToken("b"), 2);
  const auto worker = Attach(WorkerToken("b"));
  auto stopped = std::async(std::launch::async, [&] { return Stop(2); });
  v1::AttachResponse response;
  ASSERT_TRUE(worker->stream->Read(&response));
  keeper_->Stop();  // and started anew: it counts its workers from 1 again
  internal::Description anew = KvDescription();
  anew.mutable_workers(1)->set_pid(9999);
  keeper_->SetDescription(anew);
  keeper_->Start();
  EXPECT_TRUE(stopped.get().ok());
  worker->context.TryCancel();
}

TEST_F(WorkerServiceTest, AWorkerThatStaysWhenAskedToEndIsReported) {
  keeper_->AddToken(WorkerToken("b"), 2);
  const auto worker = Attach(WorkerToken("b"));
  const absl::Status status = Stop(2, 50);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("still there"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("pid 4713"));
  worker->context.TryCancel();
}

TEST_F(WorkerServiceTest, AWorkerWithoutAStreamCannotBeAskedToEnd) {
  const absl::Status status = Stop(2);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no stream to control"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("`baton worker kill kv 2`"));
  EXPECT_EQ(Stop(77).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Stop(0).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Stop(2, 600'001).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(WorkerServiceTest, WhatAWorkerSaysOfItsHealthIsShown) {
  keeper_->AddToken(WorkerToken("t"), 2);
  EXPECT_TRUE(Describe(2).healthy());
  auto worker = Attach(WorkerToken("t"));
  EXPECT_TRUE(Describe(2).healthy());
  v1::AttachRequest health;
  health.mutable_health()->set_detail("disk full " + std::string(245, '.') + "\u00e4");
  ASSERT_TRUE(worker->stream->Write(health));
  EXPECT_TRUE(harness::WaitUntil("its health", [&] { return !Describe(2).healthy(); }).ok());
  // Its first 256 bytes, whole characters.
  EXPECT_EQ(Describe(2).health_detail(), "disk full " + std::string(245, '.'));
  EXPECT_TRUE(Describe(1).healthy());
  v1::ListWorkersRequest all;
  const auto workers = Operator()->Ask(&Operator::ListWorkers, all);
  ASSERT_TRUE(workers.ok()) << workers.status();
  ASSERT_EQ(workers->workers_size(), 2);
  EXPECT_FALSE(workers->workers(1).worker().healthy());
  health.mutable_health()->set_healthy(true);
  health.mutable_health()->set_detail("");
  ASSERT_TRUE(worker->stream->Write(health));
  EXPECT_TRUE(harness::WaitUntil("its health", [&] { return Describe(2).healthy(); }).ok());
  worker->context.TryCancel();
}

TEST_F(WorkerServiceTest, AStreamThatNeverSaysHelloIsEnded) {
  control_.reset();
  auto control = ControlServer::Start(config_, std::chrono::milliseconds(50));
  ASSERT_TRUE(control.ok()) << control.status();
  control_ = *std::move(control);
  const auto silent = Connect();
  v1::AttachResponse response;
  EXPECT_FALSE(silent->stream->Read(&response));
  const grpc::Status status = silent->stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_THAT(status.error_message(), HasSubstr("no WorkerHello came within 50 ms"));
  // One that did may be silent for longer.
  keeper_->AddToken(WorkerToken("t"), 2);
  const auto worker = Attach(WorkerToken("t"));
  std::this_thread::sleep_for(std::chrono::milliseconds(150));
  v1::AttachRequest health;
  health.mutable_health()->set_detail("still here");
  ASSERT_TRUE(worker->stream->Write(health));
  EXPECT_TRUE(harness::WaitUntil("its health", [&] { return !Describe(2).healthy(); }).ok());
  worker->context.TryCancel();
}

constexpr char kAttach[] = "/baton.v1.WorkerService/Attach";
constexpr uint32_t kFloodBytes = 32 << 20;
constexpr int kFloodStreams = 8;
// All unfinished messages of a user together take 32 MiB, and gRPC ends streams a little late.
constexpr int64_t kTakenBytes = 64 << 20;

TEST_F(WorkerServiceTest, UnfinishedMessagesTakeABoundedPartOfMemory) {
  const std::string socket = ControlSocketPath(state_dir_);
  const int64_t taken = SendUnfinished(socket, kAttach, kFloodStreams, kFloodBytes);
  EXPECT_GT(taken, 0);
  EXPECT_LT(taken, kTakenBytes);
  keeper_->AddToken(WorkerToken("t"), 2);
  // Control may still be freeing what the flood took, and turns new connections away until then.
  EXPECT_TRUE(harness::WaitUntil("a worker is served again", [&] {
                const auto worker = Connect();
                worker->stream->Write(Hello(WorkerToken("t")));
                v1::AttachResponse response;
                const bool welcome = worker->stream->Read(&response) && response.has_welcome();
                worker->context.TryCancel();
                return welcome;
              }).ok());
}

TEST_F(WorkerServiceTest, AMessageThatIsTooLongEndsItsStream) {
  v1::AttachRequest hello = Hello(WorkerToken("t"));
  hello.mutable_hello()->mutable_version()->set_release(std::string(8192, 'x'));
  EXPECT_EQ(Connect()->End(hello).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(WorkerServiceTest, AnotherUsersFloodEndsNobodysStream) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  keeper_->AddToken(WorkerToken("t"), 2);
  const auto worker = Attach(WorkerToken("t"));
  const std::string socket = ControlSocketPath(state_dir_);
  const pid_t child = fork();
  if (child == 0) {
    if (setgid(65534) != 0 || setuid(65534) != 0) _exit(1);
    _exit(SendUnfinished(socket, kAttach, kFloodStreams, kFloodBytes) > 0 ? 0 : 2);
  }
  int child_status = -1;
  ASSERT_EQ(waitpid(child, &child_status, 0), child);
  EXPECT_EQ(child_status, 0);
  v1::AttachRequest health;
  health.mutable_health()->set_detail("still here");
  ASSERT_TRUE(worker->stream->Write(health));
  EXPECT_TRUE(harness::WaitUntil("its health", [&] { return !Describe(2).healthy(); }).ok());
  worker->context.TryCancel();
}

TEST_F(WorkerServiceTest, ATokenThatCanBeNoneDoesNotReachTheKeeper) {
  for (const std::string& token : {std::string(), std::string("short"), std::string(15, 't'),
                                   std::string(17, 't'), std::string(3000, 't')}) {
    const grpc::Status status = Connect()->End(Hello(token));
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED);
    EXPECT_EQ(status.error_message(), "the token is unknown or used: ask the keeper for a new one");
  }
  EXPECT_EQ(keeper_->CountRequests([](const Request& r) { return r.has_redeem_token(); }), 0u);
}

TEST_F(WorkerServiceTest, AUserHasABoundedNumberOfTokensAtTheKeeper) {
  constexpr size_t kOutstanding = 64;
  keeper_->SetAnswering(false);
  std::vector<std::unique_ptr<Worker>> waiting;
  for (size_t i = 0; i < kOutstanding; ++i) {
    waiting.push_back(Connect());
    ASSERT_TRUE(waiting.back()->stream->Write(Hello(WorkerToken("t"))));
  }
  ASSERT_TRUE(
      keeper_->WaitForRequest([](const Request& r) { return r.has_redeem_token(); }, kOutstanding));
  const grpc::Status refused = Connect()->End(Hello(WorkerToken("t")));
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), HasSubstr("64 streams"));
  EXPECT_EQ(keeper_->CountRequests([](const Request& r) { return r.has_redeem_token(); }),
            kOutstanding);
  // A keeper that is gone has answered them all.
  keeper_->Stop();
  v1::AttachResponse response;
  for (const auto& worker : waiting) EXPECT_FALSE(worker->stream->Read(&response));
  keeper_->SetAnswering(true);
  keeper_->AddToken(WorkerToken("t"), 2);
  keeper_->Start();
  Attach(WorkerToken("t"))->context.TryCancel();
}

TEST_F(WorkerServiceTest, OneWorkerThatComesAndGoesLeavesNothingBehind) {
  for (int i = 0; i < 200; ++i) {
    const std::string token = WorkerToken("t" + std::to_string(i));
    keeper_->AddToken(token, 1000 + static_cast<uint64_t>(i));
    auto worker = Connect();
    worker->stream->Write(Hello(token));
    if (i % 2 == 0) {
      v1::AttachResponse response;
      EXPECT_TRUE(worker->stream->Read(&response));
    }
    worker->context.TryCancel();
  }
  // The last that was welcomed is told to be gone, and a new one is served.
  EXPECT_TRUE(WaitForStream(1198, false));
  keeper_->AddToken(WorkerToken("last"), 2);
  Attach(WorkerToken("last"))->context.TryCancel();
}

}  // namespace

int64_t SendUnfinished(const std::string& socket_path, const std::string& method, int streams,
                       uint32_t announced) {
  absl::StatusOr<FileDescriptor> socket = ConnectUnix(socket_path);
  if (!socket.ok()) return -1;
  Client client(*std::move(socket));
  return client.Open(method, streams) ? client.Flood(announced) : -1;
}

}  // namespace baton
