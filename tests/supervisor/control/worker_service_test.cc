#include "supervisor/control/worker_service.h"

#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "proto/baton/v1/worker.grpc.pb.h"
#include "supervisor/cli/client.h"
#include "supervisor/control/config.h"
#include "tests/supervisor/control/control_fixture.h"

namespace baton {
namespace {

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
      : stub(v1::WorkerService::NewStub(
            grpc::CreateChannel("unix:" + socket, grpc::InsecureChannelCredentials()))),
        stream(stub->Attach(&context)) {}

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

  bool WaitForStream(uint64_t worker_id, bool open) {
    return keeper_->WaitForRequest([=](const Request& r) {
      return r.has_control_stream() && r.control_stream().worker_id() == worker_id &&
             r.control_stream().open() == open;
    });
  }
};

TEST_F(WorkerServiceTest, WelcomesAWorkerAndTellsTheKeeper) {
  keeper_->AddToken("t", 2);
  auto worker = Connect();
  worker->stream->Write(Hello("t"));
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
  keeper_->AddToken("t", 2);
  const auto worker = Attach("t");
  for (const char* token : {"t", "unknown", ""}) {
    const grpc::Status status = Connect()->End(Hello(token));
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED);
    EXPECT_EQ(status.error_message(), "the token is unknown or used: ask the keeper for a new one");
  }
  worker->context.TryCancel();
}

TEST_F(WorkerServiceTest, AnotherProtocolVersionIsRefusedWithBothNamed) {
  keeper_->AddToken("t", 2);
  const grpc::Status status = Connect()->End(Hello("t", "kv", 7));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("version 7"));
  EXPECT_THAT(status.error_message(), HasSubstr("speaks 1"));
  Attach("t")->context.TryCancel();  // the token was not spent on it
}

TEST_F(WorkerServiceTest, AnUnknownServiceIsNotFoundAndTheKnownAreNamed) {
  const grpc::Status status = Connect()->End(Hello("t", "shop"));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(status.error_message(), HasSubstr("kv, nvme"));
}

TEST_F(WorkerServiceTest, AKeeperThatIsNotThereIsUnavailable) {
  const grpc::Status status = Connect()->End(Hello("t", "nvme"));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("nvme.keeper.sock"));
}

TEST_F(WorkerServiceTest, HelloComesFirst) {
  v1::AttachRequest health;
  health.mutable_health()->set_healthy(true);
  EXPECT_EQ(Connect()->End(health).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(WorkerServiceTest, ANewStreamOfAWorkerEndsItsFormerOne) {
  keeper_->AddToken("a", 2);
  keeper_->AddToken("b", 2);
  const auto former = Attach("a");
  const auto present = Attach("b");
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
  keeper_->AddToken("a", 1);
  keeper_->AddToken("b", 2);
  const auto owner = Attach("a");
  const auto other = Attach("b");
  auto client = OperatorClient::Connect(OperatorSocketPath(state_dir_), 20);
  ASSERT_TRUE(client.ok()) << client.status();
  v1::HandoffRequest request;
  request.set_service("kv");
  ASSERT_TRUE((*client)->Handoff(request, 20).ok());
  v1::AttachResponse response;
  ASSERT_TRUE(owner->stream->Read(&response));
  EXPECT_THAT(response.handoff().shards(), ElementsAre(0));
  control_.reset();  // ends both streams
  EXPECT_FALSE(other->stream->Read(&response));
}

TEST_F(WorkerServiceTest, AKeeperThatIsReachedAnewHearsOfOpenStreams) {
  keeper_->AddToken("t", 2);
  const auto worker = Attach("t");
  ASSERT_TRUE(WaitForStream(2, true));
  keeper_->Stop();
  keeper_->Start();
  EXPECT_TRUE(keeper_->WaitForRequest(
      [](const Request& r) { return r.has_control_stream() && r.control_stream().open(); }, 2));
  worker->context.TryCancel();
}

TEST_F(WorkerServiceTest, AKeeperThatHasForgottenAWorkerEndsItsStream) {
  keeper_->AddToken("t", 2);
  const auto worker = Attach("t");
  ASSERT_TRUE(WaitForStream(2, true));
  keeper_->Stop();
  keeper_->ForgetWorkers(true);
  keeper_->Start();
  v1::AttachResponse response;
  EXPECT_FALSE(worker->stream->Read(&response));
  EXPECT_EQ(worker->stream->Finish().error_code(), grpc::StatusCode::ABORTED);
}

TEST_F(WorkerServiceTest, OneWorkerThatComesAndGoesLeavesNothingBehind) {
  for (int i = 0; i < 200; ++i) {
    const std::string token = "t" + std::to_string(i);
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
  keeper_->AddToken("last", 2);
  Attach("last")->context.TryCancel();
}

}  // namespace
}  // namespace baton
