#include "supervisor/batond/control_requests.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/socket.h>

#include <boost/asio/io_context.hpp>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lib/channel/message_channel.h"
#include "proto/baton/internal/batond.pb.h"
#include "supervisor/batond/rejoin_server.h"
#include "supervisor/config/state_files.h"

namespace baton {
namespace {

// The two ends of a channel between batond and a process that it has started.
struct Ends {
  FileDescriptor batond;
  std::unique_ptr<MessageChannel> child;
};

Ends MakeEnds() {
  int ends[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  return {FileDescriptor(ends[0]), std::make_unique<MessageChannel>(FileDescriptor(ends[1]))};
}

// Runs the loop until `answered` returns `count`. Each turn answers a few requests, so that
// batond's other work has its turn in between.
void ExpectAFewATurn(boost::asio::io_context& io, size_t count,
                     const std::function<size_t()>& answered) {
  size_t turns = 0;
  for (size_t so_far = 0; so_far < count;) {
    ASSERT_EQ(io.run_one(), 1u);
    so_far = answered();
    EXPECT_LE(so_far, 10 * ++turns);
  }
}

TEST(ControlRequests, AnswersAFewRequestsOfOneThatAsksWithoutAPause) {
  Ends ends = MakeEnds();
  boost::asio::io_context io;
  size_t reloads = 0;
  const auto reload = [&](const internal::ReloadConfig&, const ControlRequests::ReloadDone& done) {
    ++reloads;
    done(internal::BatondReply());
  };
  const auto open = [](const internal::OpenFile&) -> absl::StatusOr<FileDescriptor> {
    return absl::NotFoundError("there is no file");
  };
  const auto replace = [](const internal::ReplaceProgram&, const ControlRequests::Done& done) {
    done(absl::UnimplementedError("it is not replaced"));
  };
  const ControlRequests requests(io, std::move(ends.batond), reload, replace, open);
  constexpr size_t kRequests = 100;
  internal::BatondRequest request;
  request.mutable_reload();
  for (size_t i = 0; i < kRequests; ++i) ASSERT_TRUE(ends.child->Send(request).ok());
  ExpectAFewATurn(io, kRequests, [&] { return reloads; });
  for (size_t i = 0; i < kRequests; ++i) {
    internal::BatondReply reply;
    ASSERT_TRUE(ends.child->Receive(&reply, 30'000).ok());
  }
}

// Control asks at such a server, and may be somebody else's by now.
TEST(RejoinServer, BoundsTheRequestsOfOneThatAsksWithoutAPause) {
  std::string directory = "/tmp/rejoin-server-XXXXXX";
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  boost::asio::io_context io;
  RejoinServer server(io, "control", std::nullopt,
                      [](const internal::RejoinRequest&, SpawnedProcess,
                         FileDescriptor) -> absl::StatusOr<std::vector<FileDescriptor>> {
                        return absl::NotFoundError("there is none");
                      });
  ASSERT_TRUE(server.Listen(ControlRejoinSocketPath(directory)).ok());
  MessageChannel client(ConnectUnix(ControlRejoinSocketPath(directory)).value());
  const FileDescriptor file(open("/dev/null", O_RDONLY | O_CLOEXEC));
  constexpr size_t kRequests = 2000;
  size_t answered = 0;
  absl::Status status;
  for (; status.ok() && answered < kRequests; answered += status.ok()) {
    status = client.Send(internal::RejoinRequest(), {file.get()});
    if (!status.ok()) break;
    internal::RejoinReply reply;
    do {
      io.poll();
      status = client.Receive(&reply, /*timeout_ms=*/1);
    } while (absl::IsDeadlineExceeded(status));
  }
  EXPECT_GE(answered, 100u);
  EXPECT_LT(answered, kRequests);
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace baton
