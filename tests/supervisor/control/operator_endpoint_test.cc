// Operators over TCP: who is let in by which certificate, and to what.
#include "supervisor/control/control_server.h"

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "proto/baton/v1/operator.grpc.pb.h"
#include "spdlog/sinks/base_sink.h"
#include "spdlog/spdlog.h"
#include "supervisor/cli/client.h"
#include "supervisor/config/state_files.h"
#include "tests/harness/file_content.h"
#include "tests/harness/wait_until.h"
#include "tests/supervisor/control/control_fixture.h"
#include "tests/supervisor/control/test_certificates.h"
#include "tests/supervisor/metrics/http_get.h"

namespace baton {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class OperatorEndpointTest : public ControlFixture {
 protected:
  void SetUp() override {
    certificates_.MakeAuthority("ca");
    certificates_.MakeAuthority("other-ca");
    certificates_.Make("ca", "server", "baton", "DNS:baton.example");
    v1::OperatorEndpoint* endpoint = config_.mutable_operator_endpoint();
    endpoint->set_address("127.0.0.1:0");
    endpoint->set_certificate_file(certificates_.Certificate("server"));
    endpoint->set_key_file(certificates_.Key("server"));
    endpoint->set_client_ca_file(certificates_.Certificate("ca"));
    endpoint->add_operators("alice");
    endpoint->add_operators("spiffe://example/deploy");
    endpoint->add_viewers("carol");
    ControlFixture::SetUp();
  }

  TlsTarget Target(const std::string& client, const std::string& ca = "ca") const {
    return {absl::StrCat("127.0.0.1:", control_->operator_port()), certificates_.Certificate(ca),
            certificates_.Certificate(client), certificates_.Key(client), "baton.example"};
  }

  // Has batond answer with `reply`, and returns what an operator who reloads is answered.
  absl::StatusOr<v1::ReloadResponse> ReloadTo(const internal::BatondReply& reply) {
    batond_.SetReply(reply);
    const auto client = OperatorClient::Connect(OperatorSocketPath(state_dir_), 20);
    if (!client.ok()) return client.status();
    return (*client)->Ask(&Operator::Reload, {});
  }

  static absl::Status Look(const TlsTarget& target) {
    const auto client = OperatorClient::Connect("", 20, target);
    return client.ok() ? (*client)->Ask(&Operator::GetStatus, {}).status() : client.status();
  }
  static absl::Status Change(const TlsTarget& target) {
    v1::KillWorkerRequest request;
    request.set_service("kv");
    request.set_worker_id(2);
    const auto client = OperatorClient::Connect("", 20, target);
    return client.ok() ? (*client)->Ask(&Operator::KillWorker, request).status() : client.status();
  }

  // The channel of a client with this certificate; without one when it is empty.
  std::shared_ptr<grpc::Channel> Channel(const std::string& client) const {
    grpc::SslCredentialsOptions pem;
    pem.pem_root_certs = harness::ReadFile(certificates_.Certificate("ca"));
    if (!client.empty()) {
      pem.pem_cert_chain = harness::ReadFile(certificates_.Certificate(client));
      pem.pem_private_key = harness::ReadFile(certificates_.Key(client));
    }
    grpc::ChannelArguments arguments;
    arguments.SetSslTargetNameOverride("baton.example");
    return grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", control_->operator_port()),
                                     grpc::SslCredentials(pem), arguments);
  }

  // What becomes of a call without a word in it.
  static grpc::Status Call(const std::shared_ptr<grpc::Channel>& channel,
                           const std::string& method) {
    grpc::GenericStub stub(channel);
    grpc::ClientContext context;
    grpc::CompletionQueue queue;
    const grpc::Slice nothing;
    const grpc::ByteBuffer request(&nothing, 1);
    grpc::ByteBuffer response;
    const auto call = stub.PrepareUnaryCall(&context, method, request, &queue);
    call->StartCall();
    grpc::Status status;
    call->Finish(&response, &status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    return status;
  }

  const TestCertificates certificates_;
};

// Where the metrics are, as the log says it.
class MetricsPort final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  int port() const { return port_; }

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    const std::string beginning = "metrics are at http://127.0.0.1:";
    const std::string text(message.payload.data(), message.payload.size());
    if (text.starts_with(beginning)) port_ = std::atoi(text.c_str() + beginning.size());
  }
  void flush_() override {}

 private:
  std::atomic<int> port_{0};
};

TEST_F(OperatorEndpointTest, shouldTellOnTheMetricsPageWhenItsCertificatesEnd) {
  constexpr int64_t kTwoDays = 2 * 86'400;  // for which they are made
  // Only our own control logs here, and it has ended when the former logger is back.
  control_.reset();
  const std::shared_ptr<spdlog::logger> former = spdlog::default_logger();
  const auto address = std::make_shared<MetricsPort>();
  spdlog::set_default_logger(std::make_shared<spdlog::logger>("test", address));
  config_.set_metrics_address("127.0.0.1:0");
  StartControl();
  EXPECT_TRUE(harness::WaitUntil("the metrics", [&] { return address->port() != 0; }).ok());
  const auto end_of = [&](const std::string& file) -> int64_t {
    const std::string name = "\nbaton_certificate_expiry_timestamp_seconds{file=\"" + file + "\"} ";
    const std::string page = metrics::HttpGet(address->port(), "/metrics");
    const size_t place = page.find(name);
    return place == std::string::npos
               ? 0
               : static_cast<int64_t>(std::atof(page.c_str() + place + name.size()));
  };
  // Both are looked at anew each time.
  int64_t before = std::time(nullptr);
  certificates_.Make("ca", "server", "baton", "DNS:baton.example");
  int64_t after = std::time(nullptr);
  int64_t end = end_of("certificate_file");
  EXPECT_GE(end, before + kTwoDays);
  EXPECT_LE(end, after + kTwoDays);
  before = std::time(nullptr);
  certificates_.MakeAuthority("ca");
  after = std::time(nullptr);
  end = end_of("client_ca_file");
  EXPECT_GE(end, before + kTwoDays);
  EXPECT_LE(end, after + kTwoDays);
  control_.reset();
  spdlog::set_default_logger(former);
}

TEST_F(OperatorEndpointTest, shouldServeAnOperatorByItsCommonName) {
  certificates_.Make("ca", "alice", "alice");
  EXPECT_EQ(Look(Target("alice")), absl::OkStatus());
  EXPECT_EQ(Change(Target("alice")), absl::OkStatus());
  EXPECT_EQ(keeper_->CountRequests([](const auto& r) { return r.kill_worker().worker_id() == 2; }),
            1u);
}

TEST_F(OperatorEndpointTest, shouldGoByAlternativeNamesWhereThereAreAny) {
  certificates_.Make("ca", "deploy", "nobody", "DNS:host.example,URI:spiffe://example/deploy");
  EXPECT_EQ(Change(Target("deploy")), absl::OkStatus());
  certificates_.Make("ca", "impostor", "alice", "DNS:host.example");
  EXPECT_EQ(Look(Target("impostor")).code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(OperatorEndpointTest, shouldLetAViewerLookAndChangeNothing) {
  certificates_.Make("ca", "carol", "carol");
  EXPECT_EQ(Look(Target("carol")), absl::OkStatus());
  const absl::Status refused = Change(Target("carol"));
  EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("certificate \"carol\" may look and change nothing"),
                    HasSubstr("add that name to operators of operator_endpoint")));
  EXPECT_EQ(keeper_->CountRequests([](const auto& r) { return r.has_kill_worker(); }), 0u);
}

// Every method there is, of every service.
TEST_F(OperatorEndpointTest, shouldRefuseAnUnknownNameEverything) {
  certificates_.Make("ca", "mallory", "alice ");
  certificates_.Make("ca", "carol", "carol");
  const auto unknown = Channel("mallory");
  const auto viewer = Channel("carol");
  const google::protobuf::ServiceDescriptor* service =
      v1::GetStatusRequest::descriptor()->file()->FindServiceByName("OperatorService");
  for (int i = 0; i < service->method_count(); ++i) {
    const std::string name = service->method(i)->name();
    const std::string method = absl::StrCat("/", service->full_name(), "/", name);
    EXPECT_EQ(Call(unknown, method).error_code(), grpc::StatusCode::PERMISSION_DENIED) << method;
    const bool reads = name.starts_with("Get") || name.starts_with("List") || name == "WatchEvents";
    if (reads) continue;
    EXPECT_EQ(Call(viewer, method).error_code(), grpc::StatusCode::PERMISSION_DENIED) << method;
  }
  for (const char* method : {"/grpc.health.v1.Health/Check", "/no.such.Service/Method",
                             "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"}) {
    EXPECT_EQ(Call(unknown, method).error_code(), grpc::StatusCode::PERMISSION_DENIED) << method;
  }
  EXPECT_EQ(Call(viewer, "/grpc.health.v1.Health/Check").error_code(), grpc::StatusCode::OK);
}

TEST_F(OperatorEndpointTest, shouldTalkToNobodyWithoutACertificate) {
  EXPECT_EQ(Call(Channel(""), "/baton.v1.OperatorService/GetStatus").error_code(),
            grpc::StatusCode::UNAVAILABLE);
  const auto plain = grpc::CreateChannel(absl::StrCat("127.0.0.1:", control_->operator_port()),
                                         grpc::InsecureChannelCredentials());
  EXPECT_EQ(Call(plain, "/baton.v1.OperatorService/GetStatus").error_code(),
            grpc::StatusCode::UNAVAILABLE);
}

TEST_F(OperatorEndpointTest, shouldTalkToNobodyOfAnotherAuthority) {
  certificates_.Make("other-ca", "alice", "alice");
  const absl::Status refused = Look(Target("alice"));
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("client_ca_file"));
}

TEST_F(OperatorEndpointTest, shouldNotBeTakenForAnotherServer) {
  certificates_.Make("ca", "alice", "alice");
  EXPECT_EQ(Look(Target("alice", "other-ca")).code(), absl::StatusCode::kUnavailable);
  TlsTarget elsewhere = Target("alice");
  elsewhere.server_name = "elsewhere.example";
  EXPECT_EQ(Look(elsewhere).code(), absl::StatusCode::kUnavailable);
}

TEST_F(OperatorEndpointTest, shouldTakeCertificatesThatAreReplaced) {
  certificates_.Make("ca", "alice", "alice");
  ASSERT_EQ(Look(Target("alice")), absl::OkStatus());
  certificates_.Make("other-ca", "server", "baton", "DNS:baton.example");
  EXPECT_TRUE(harness::WaitUntil("the server's new certificate", [&] {
                return Look(Target("alice", "other-ca")).ok();
              }).ok());
  certificates_.Make("other-ca", "bob", "alice");
  EXPECT_EQ(Look(Target("bob", "other-ca")).code(), absl::StatusCode::kUnavailable);
  // gRPC aborts the process when a file that it reads becomes shorter meanwhile.
  const std::string replacement = certificates_.Certificate("ca") + ".new";
  std::filesystem::copy_file(certificates_.Certificate("other-ca"), replacement);
  std::filesystem::rename(replacement, certificates_.Certificate("ca"));
  EXPECT_TRUE(harness::WaitUntil("the new authority", [&] {
                return Look(Target("bob", "other-ca")).ok();
              }).ok());
  EXPECT_EQ(Look(Target("alice", "other-ca")).code(), absl::StatusCode::kUnavailable);
}

// Those on the machine are served meanwhile.
TEST_F(OperatorEndpointTest, shouldBeServedOnceItsFilesAreThere) {
  control_.reset();
  certificates_.Make("ca", "alice", "alice");
  config_.mutable_operator_endpoint()->set_certificate_file(state_dir_ + "/late.crt");
  StartControl();
  EXPECT_FALSE(control_->operator_endpoint_status().ok());
  std::filesystem::copy_file(certificates_.Certificate("server"), state_dir_ + "/late.crt");
  EXPECT_TRUE(harness::WaitUntil("the endpoint", [&] {
                return control_->operator_endpoint_status().ok();
              }).ok());
  EXPECT_EQ(Look(Target("alice")), absl::OkStatus());
}

TEST_F(OperatorEndpointTest, shouldSayWhichFileIsWrongAndHow) {
  const auto start = [&](const internal::ControlConfig& config) {
    control_.reset();
    auto control = ControlServer::Start(config);
    EXPECT_TRUE(control.ok()) << control.status();
    return std::string((*control)->operator_endpoint_status().message());
  };
  internal::ControlConfig config = config_;
  config.mutable_operator_endpoint()->set_certificate_file("/nowhere/a.crt");
  EXPECT_THAT(start(config), AllOf(HasSubstr("operator_endpoint.certificate_file: /nowhere/a.crt"),
                                   HasSubstr("put the file there")));
  config = config_;
  config.mutable_operator_endpoint()->set_key_file(certificates_.Key("ca"));
  EXPECT_THAT(start(config), AllOf(HasSubstr("operator_endpoint.key_file"),
                                   HasSubstr("is not the key of the first certificate in")));
  config = config_;
  config.mutable_operator_endpoint()->set_client_ca_file(certificates_.Key("ca"));
  EXPECT_THAT(start(config), HasSubstr("client_ca_file: " + certificates_.Key("ca") +
                                       ": has no certificate in PEM"));
  config = config_;
  config.mutable_operator_endpoint()->set_address("192.0.2.1:9443");
  EXPECT_THAT(start(config), HasSubstr("cannot listen at 192.0.2.1:9443"));
}

constexpr char kLook[] = "/baton.v1.OperatorService/GetStatus";

TEST_F(OperatorEndpointTest, shouldCutOffWhoseCertificateIsRevoked) {
  certificates_.Make("ca", "alice", "alice");
  certificates_.Make("ca", "carol", "carol");
  certificates_.MakeRevocations("ca", "list", {});
  config_.mutable_operator_endpoint()->set_crl_file(certificates_.Revocations("list"));
  StartControl();
  const auto alice = Channel("alice");
  ASSERT_EQ(Call(alice, kLook).error_code(), grpc::StatusCode::OK);
  const auto stub = v1::OperatorService::NewStub(alice);
  grpc::ClientContext following;
  v1::WatchEventsRequest follow;
  follow.set_follow(true);
  const auto events = stub->WatchEvents(&following, follow);
  certificates_.MakeRevocations("ca", "list", {"alice"});
  v1::WatchEventsResponse event;
  while (events->Read(&event)) {
  }
  const grpc::Status ended = events->Finish();
  EXPECT_EQ(ended.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_THAT(ended.error_message(),
              HasSubstr("certificate \"alice\" is not accepted: certificate revoked"));
  EXPECT_EQ(Call(alice, kLook).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(Look(Target("alice")).code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(Look(Target("carol")), absl::OkStatus());
}

TEST_F(OperatorEndpointTest, shouldLetNobodyInWhoseAuthorityHasNoCurrentList) {
  certificates_.Make("ca", "alice", "alice");
  certificates_.MakeRevocations("other-ca", "list", {});
  config_.mutable_operator_endpoint()->set_crl_file(certificates_.Revocations("list"));
  StartControl();
  const absl::Status none = Look(Target("alice"));
  EXPECT_EQ(none.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_THAT(std::string(none.message()),
              HasSubstr("put a current list of its authority into crl_file"));
  certificates_.MakeRevocations("ca", "list", {}, /*expired=*/true);
  EXPECT_TRUE(harness::WaitUntil("the list of the past", [&] {
                return std::string(Look(Target("alice")).message()).find("expired") !=
                       std::string::npos;
              }).ok());
  certificates_.MakeRevocations("ca", "list", {});
  EXPECT_TRUE(
      harness::WaitUntil("the current list", [&] { return Look(Target("alice")).ok(); }).ok());
}

TEST_F(OperatorEndpointTest, shouldCutOffWhoseAuthorityIsReplaced) {
  certificates_.Make("ca", "alice", "alice");
  const auto alice = Channel("alice");
  ASSERT_EQ(Call(alice, kLook).error_code(), grpc::StatusCode::OK);
  // gRPC aborts the process when a file that it reads becomes shorter meanwhile.
  const std::string replacement = certificates_.Certificate("ca") + ".new";
  std::filesystem::copy_file(certificates_.Certificate("other-ca"), replacement);
  std::filesystem::rename(replacement, certificates_.Certificate("ca"));
  EXPECT_TRUE(harness::WaitUntil("the new authority", [&] {
                return Call(alice, kLook).error_code() == grpc::StatusCode::UNAUTHENTICATED;
              }).ok());
}

TEST_F(OperatorEndpointTest, shouldTakeNewListsAndNamesWhenItIsTold) {
  certificates_.Make("ca", "alice", "alice");
  certificates_.Make("ca", "dora", "dora");
  const auto alice = Channel("alice");
  const auto dora = Channel("dora");
  ASSERT_EQ(Call(alice, kLook).error_code(), grpc::StatusCode::OK);
  ASSERT_EQ(Call(dora, kLook).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  certificates_.MakeRevocations("ca", "list", {"alice"});
  internal::BatondReply reply;
  *reply.mutable_config() = config_;
  v1::OperatorEndpoint* endpoint = reply.mutable_config()->mutable_operator_endpoint();
  endpoint->set_crl_file(certificates_.Revocations("list"));
  endpoint->add_viewers("dora");
  const auto reloaded = ReloadTo(reply);
  ASSERT_TRUE(reloaded.ok()) << reloaded.status();
  EXPECT_EQ(reloaded->not_taken_size(), 0);
  // When it answers they are in force.
  EXPECT_EQ(Call(alice, kLook).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(Call(dora, kLook).error_code(), grpc::StatusCode::OK);

  endpoint->set_crl_file("/nowhere/list.crl");
  const auto missing = ReloadTo(reply);
  ASSERT_TRUE(missing.ok()) << missing.status();
  ASSERT_EQ(missing->not_taken_size(), 1);
  EXPECT_EQ(missing->not_taken(0).field(), "operator_endpoint");
  EXPECT_THAT(missing->not_taken(0).why(), HasSubstr("crl_file: /nowhere/list.crl"));
  EXPECT_EQ(Call(alice, kLook).error_code(), grpc::StatusCode::UNAUTHENTICATED);
}

// The former files stay as they are. Nobody reads them any more.
TEST_F(OperatorEndpointTest, shouldTakeOtherFilesWhenItIsTold) {
  certificates_.Make("other-ca", "next-server", "baton", "DNS:baton.example");
  certificates_.Make("other-ca", "bob", "alice");
  certificates_.Make("ca", "alice", "alice");
  const auto alice = Channel("alice");
  ASSERT_EQ(Call(alice, kLook).error_code(), grpc::StatusCode::OK);
  internal::BatondReply reply;
  *reply.mutable_config() = config_;
  v1::OperatorEndpoint* endpoint = reply.mutable_config()->mutable_operator_endpoint();
  endpoint->set_certificate_file(certificates_.Certificate("next-server"));
  endpoint->set_key_file(certificates_.Key("next-server"));
  endpoint->set_client_ca_file(certificates_.Certificate("other-ca"));
  const auto reloaded = ReloadTo(reply);
  ASSERT_TRUE(reloaded.ok()) << reloaded.status();
  EXPECT_EQ(reloaded->not_taken_size(), 0);
  // When it answers, the former authority has lost its clients. gRPC reads the files a little
  // later.
  EXPECT_EQ(Call(alice, kLook).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_TRUE(harness::WaitUntil("the other files", [&] {
                return Look(Target("bob", "other-ca")).ok();
              }).ok());
  EXPECT_EQ(Look(Target("alice", "other-ca")).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Look(Target("bob", "ca")).code(), absl::StatusCode::kUnavailable);

  // A certificate whose key is another file's is not taken, and the files before stay in force.
  endpoint->set_certificate_file(certificates_.Certificate("server"));
  const auto wrong = ReloadTo(reply);
  ASSERT_TRUE(wrong.ok()) << wrong.status();
  ASSERT_EQ(wrong->not_taken_size(), 1);
  EXPECT_THAT(wrong->not_taken(0).why(), HasSubstr("operator_endpoint.key_file"));
  EXPECT_EQ(Look(Target("bob", "other-ca")), absl::OkStatus());
}

}  // namespace
}  // namespace baton
