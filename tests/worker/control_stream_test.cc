#include "worker/control_stream.h"

#include <atomic>
#include <future>
#include <stdexcept>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "supervisor/cli/client.h"
#include "supervisor/control/config.h"
#include "tests/harness/wait_until.h"
#include "tests/supervisor/control/control_fixture.h"

namespace baton {
namespace {

using ::testing::ElementsAre;

using Request = internal::ManagementRequest;

class ControlStreamTest : public ControlFixture {
 protected:
  ControlStreamOptions Options() {
    ControlStreamOptions options;
    options.control_socket = ControlSocketPath(state_dir_);
    options.service = "kv";
    options.new_token = [this]() -> absl::StatusOr<std::string> {
      const std::string token = WorkerToken(absl::StrCat("token ", ++tokens_asked_));
      keeper_->AddToken(token, 1);
      return token;
    };
    return options;
  }

  static std::unique_ptr<ControlStream> Start(ControlStreamOptions options) {
    auto stream = ControlStream::Start(std::move(options));
    EXPECT_TRUE(stream.ok()) << stream.status();
    return *std::move(stream);
  }

  bool WaitUntilOpened() {
    return keeper_->WaitForRequest(
        [](const Request& r) { return r.has_control_stream() && r.control_stream().open(); });
  }

  bool WaitForRedeemed(const std::string& token) {
    return keeper_->WaitForRequest(
        [&token](const Request& r) { return r.redeem_token().token() == token; });
  }

  // Waits until an operator is told of this health.
  bool WaitForHealth(bool healthy, const std::string& detail) {
    v1::GetWorkerRequest request;
    request.set_service("kv");
    request.set_worker_id(1);
    return harness::WaitUntil("the worker's health",
                              [&] {
                                auto client =
                                    OperatorClient::Connect(OperatorSocketPath(state_dir_), 20);
                                const auto response = (*client)->Ask(&Operator::GetWorker, request);
                                return response.ok() && response->worker().healthy() == healthy &&
                                       response->worker().health_detail() == detail;
                              })
        .ok();
  }

  void AskForHandoff() {
    auto client = OperatorClient::Connect(OperatorSocketPath(state_dir_), 20);
    ASSERT_TRUE(client.ok()) << client.status();
    v1::HandoffRequest request;
    request.set_service("kv");
    ASSERT_TRUE((*client)->Ask(&Operator::Handoff, request).ok());
  }

  std::atomic<int> tokens_asked_{0};
};

TEST_F(ControlStreamTest, OpensWithTheFirstTokenAndTellsTheKeeper) {
  keeper_->AddToken(WorkerToken("first"), 1);
  ControlStreamOptions options = Options();
  options.first_token = WorkerToken("first");
  const auto stream = Start(std::move(options));
  ASSERT_TRUE(WaitUntilOpened());
  EXPECT_EQ(tokens_asked_, 0);
  stream->Stop();
  EXPECT_TRUE(keeper_->WaitForRequest([](const Request& r) {
    return r.has_control_stream() && r.control_stream().worker_id() == 1 &&
           !r.control_stream().open();
  }));
}

TEST_F(ControlStreamTest, TellsOfAHandoffEvenAfterACallbackThrew) {
  std::promise<std::vector<uint32_t>> told;
  int calls = 0;
  ControlStreamOptions options = Options();
  options.on_handoff = [&](const std::vector<uint32_t>& shards) {
    if (++calls == 1) throw std::runtime_error("the host's mistake");
    told.set_value(shards);
  };
  const auto stream = Start(std::move(options));
  ASSERT_TRUE(WaitUntilOpened());
  AskForHandoff();
  AskForHandoff();
  EXPECT_THAT(told.get_future().get(), ElementsAre(0));
}

TEST_F(ControlStreamTest, ComesBackWithAFreshTokenWhenControlDoes) {
  const auto stream = Start(Options());
  ASSERT_TRUE(WaitUntilOpened());
  control_.reset();
  StartControl();
  EXPECT_TRUE(WaitForRedeemed(WorkerToken("token 2")));
}

TEST_F(ControlStreamTest, TellsHealthAgainOnEachStreamAndOnlyTheLatest) {
  const auto stream = Start(Options());
  stream->ReportHealth(true, "");  // as everybody thinks
  stream->ReportHealth(false, "disk \xff full");
  EXPECT_TRUE(WaitForHealth(false, "disk ? full"));
  stream->ReportHealth(true, "");
  EXPECT_TRUE(WaitForHealth(true, ""));
  control_.reset();
  stream->ReportHealth(true, "slow");
  stream->ReportHealth(false, "slower");
  StartControl();
  EXPECT_TRUE(WaitForHealth(false, "slower"));
}

TEST_F(ControlStreamTest, NeverWaitsToTellHealthAndStopsMeanwhile) {
  keeper_->SetAnswering(false);  // so that it is not welcomed
  const auto stream = Start(Options());
  ASSERT_TRUE(WaitForRedeemed(WorkerToken("token 1")));
  for (int i = 0; i < 10'000; ++i) stream->ReportHealth(false, absl::StrCat("step ", i));
  stream->Stop();
  stream->ReportHealth(true, "");
}

TEST_F(ControlStreamTest, TellsOfAShutdown) {
  std::promise<std::string> told;
  ControlStreamOptions options = Options();
  options.on_shutdown = [&](const std::string& reason) { told.set_value(reason); };
  const auto stream = Start(std::move(options));
  ASSERT_TRUE(WaitUntilOpened());
  auto client = OperatorClient::Connect(OperatorSocketPath(state_dir_), 20);
  ASSERT_TRUE(client.ok()) << client.status();
  v1::StopWorkerRequest request;
  request.set_service("kv");
  request.set_worker_id(1);
  request.set_timeout_ms(1);
  EXPECT_EQ((*client)->Ask(&Operator::StopWorker, request).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(told.get_future().get(), "an operator asked for it");
}

TEST_F(ControlStreamTest, WaitsForAControlThatIsNotThereYetWithoutUsingTokens) {
  control_.reset();
  const auto stream = Start(Options());
  EXPECT_FALSE(stream->status().ok());
  EXPECT_EQ(tokens_asked_, 0);
  StartControl();
  EXPECT_TRUE(WaitUntilOpened());
}

TEST_F(ControlStreamTest, TriesAgainWhenATokenIsRefused) {
  ControlStreamOptions options = Options();
  options.first_token = WorkerToken("stale");
  const auto stream = Start(std::move(options));
  EXPECT_TRUE(WaitUntilOpened());
  EXPECT_EQ(tokens_asked_, 1);
}

TEST_F(ControlStreamTest, StopsWhileControlIsAway) {
  control_.reset();
  const auto stream = Start(Options());
  stream->Stop();
  EXPECT_EQ(tokens_asked_, 0);
}

TEST_F(ControlStreamTest, StopsWhileTheKeeperHangs) {
  keeper_->SetAnswering(false);
  const auto stream = Start(Options());
  ASSERT_TRUE(WaitForRedeemed(WorkerToken("token 1")));
  stream->Stop();
  EXPECT_FALSE(stream->status().ok());
}

TEST_F(ControlStreamTest, SurvivesASourceOfTokensThatThrows) {
  ControlStreamOptions options = Options();
  std::atomic<bool> thrown{false};
  options.new_token = [&, good = options.new_token]() -> absl::StatusOr<std::string> {
    if (!thrown.exchange(true)) throw std::runtime_error("the host's mistake");
    return good();
  };
  const auto stream = Start(std::move(options));
  EXPECT_TRUE(WaitUntilOpened());
}

}  // namespace
}  // namespace baton
