#include "supervisor/metrics/endpoint.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/file_descriptor.h"
#include "supervisor/metrics/families.h"
#include "tests/harness/wait_until.h"
#include "tests/supervisor/metrics/http_get.h"

namespace baton::metrics {
namespace {

using ::testing::HasSubstr;

class One final : public prometheus::Collectable {
 public:
  std::vector<prometheus::MetricFamily> Collect() const override {
    Family family = Family::Gauge("baton_one", "One.");
    family.Add({{"service", "a \"quoted\" name"}}, 1);
    return {family.get()};
  }
};

absl::Status WaitUntilListening(const Endpoint& endpoint) {
  return harness::WaitUntil("the endpoint to listen", [&] { return endpoint.port() != 0; });
}

TEST(EndpointTest, shouldServeMetricsAsText) {
  const Endpoint endpoint("127.0.0.1:0", std::make_shared<One>());
  ASSERT_TRUE(WaitUntilListening(endpoint).ok());
  const std::string answer = HttpGet(endpoint.port(), "/metrics");
  EXPECT_THAT(answer, HasSubstr("HTTP/1.1 200 OK"));
  EXPECT_THAT(answer, HasSubstr("baton_one{service=\"a \\\"quoted\\\" name\"} 1"));
  EXPECT_THAT(HttpGet(endpoint.port(), "/other"), HasSubstr("404"));
}

TEST(EndpointTest, shouldListenAsSoonAsItsPortIsFree) {
  FileDescriptor taken(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const name = reinterpret_cast<sockaddr*>(&address);
  ASSERT_EQ(bind(taken.get(), name, length), 0);
  ASSERT_EQ(listen(taken.get(), 1), 0);
  ASSERT_EQ(getsockname(taken.get(), name, &length), 0);
  const std::string text = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  const Endpoint endpoint(text, std::make_shared<One>(), std::chrono::milliseconds(5));
  EXPECT_EQ(endpoint.port(), 0);
  taken.Reset();
  ASSERT_TRUE(WaitUntilListening(endpoint).ok());
  EXPECT_EQ(endpoint.port(), ntohs(address.sin_port));
  EXPECT_THAT(HttpGet(endpoint.port(), "/metrics"), HasSubstr("baton_one"));
}

TEST(EndpointTest, shouldEndWhileItCannotListen) {
  // An address of documentation, which is nobody's (RFC 5737).
  const Endpoint endpoint("192.0.2.1:9464", std::make_shared<One>(), std::chrono::hours(1));
  EXPECT_EQ(endpoint.port(), 0);
}

}  // namespace
}  // namespace baton::metrics
