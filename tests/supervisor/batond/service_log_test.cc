// A service's log in systemd's journal, of which this test takes the part.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "supervisor/batond/child.h"
#include "tests/supervisor/batond/batond_process.h"

namespace {

constexpr char kJournal[] = "/run/systemd/journal/stdout";

sockaddr_un g_journal = {};  // where connections to the journal go

sockaddr_un AddressOf(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

}  // namespace

// In the place of libc's.
extern "C" int connect(int fd, const sockaddr* to, socklen_t length) {
  if (to->sa_family == AF_UNIX && length > offsetof(sockaddr_un, sun_path) &&
      std::strncmp(reinterpret_cast<const sockaddr_un*>(to)->sun_path, kJournal,
                   length - offsetof(sockaddr_un, sun_path)) == 0) {
    to = reinterpret_cast<const sockaddr*>(&g_journal);
    length = sizeof(g_journal);
  }
  return static_cast<int>(syscall(SYS_connect, fd, to, length));
}

namespace baton {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class JournalTest : public ::testing::Test {
 protected:
  JournalTest() : listening_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    g_journal = AddressOf(directory_.path() + "/journal");
  }

  void Listen() {
    ASSERT_EQ(
        bind(listening_.get(), reinterpret_cast<const sockaddr*>(&g_journal), sizeof(g_journal)),
        0);
    ASSERT_EQ(listen(listening_.get(), 8), 0);
  }

  // All that the next stream has had, once its writer has closed it.
  std::string NextStream() const {
    const FileDescriptor stream(accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    std::string text;
    char buffer[4096];
    for (ssize_t got; (got = read(stream.get(), buffer, sizeof(buffer))) > 0;) {
      text.append(buffer, static_cast<size_t>(got));
    }
    return text;
  }

  const TemporaryDirectory directory_;
  const FileDescriptor listening_;
};

TEST_F(JournalTest, shouldGetAStreamOfEachService) {
  ASSERT_NO_FATAL_FAILURE(Listen());
  for (const char* const service : {"kv", "queue"}) {
    absl::StatusOr<FileDescriptor> log = OpenServiceLog("journal", service);
    ASSERT_TRUE(log.ok()) << log.status();
    const std::string_view line = "what the keeper says\n";
    ASSERT_EQ(write(log->get(), line.data(), line.size()), static_cast<ssize_t>(line.size()));
    log->Reset();
    const std::string stream = NextStream();
    // The name that `journalctl -t` takes, and LOG_INFO, without prefixes of lines.
    EXPECT_THAT(stream, StartsWith(std::string("baton-") + service + "\n"));
    EXPECT_THAT(stream, HasSubstr("\n6\n0\n"));
    EXPECT_THAT(stream, EndsWith("\nwhat the keeper says\n"));
  }
}

TEST_F(JournalTest, shouldBeAskedForWhetherItRuns) {
  const absl::Status status = OpenServiceLog("journal", "kv").status();
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("log: systemd's journal (does it run here?)"));
}

}  // namespace
}  // namespace baton
