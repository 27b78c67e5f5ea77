#include "lib/text/host_port.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

TEST(HostPort, shouldReadHostsAndPorts) {
  const auto name = ParseHostPort("kv1.example:7471");
  ASSERT_TRUE(name);
  EXPECT_EQ(name->host, "kv1.example");
  EXPECT_EQ(name->port, 7471);
  const auto ipv6 = ParseHostPort("[fe80::1%eth0]:0");
  ASSERT_TRUE(ipv6);
  EXPECT_EQ(ipv6->host, "fe80::1%eth0");
  EXPECT_EQ(ipv6->port, 0);
  EXPECT_EQ(ParseHostPort("1.2.3.4:65535")->port, 65535);
}

TEST(HostPort, shouldRefuseWhatIsNone) {
  for (const char* text : {"", ":", "host", "host:", ":7471", "1.2.3.4:65536", "1.2.3.4:-1",
                           "1.2.3.4:+1", "1.2.3.4: 1", "1.2.3.4:1x", "::1:7471", "[::1]", "[]:1",
                           "[1.2.3.4]:1", "[::1:1", "::1]:1"}) {
    EXPECT_FALSE(ParseHostPort(text)) << text;
  }
}

}  // namespace
}  // namespace baton
