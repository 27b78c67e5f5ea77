// The socket at which drivers, or control, that outlived a former batond introduce themselves
// (proto/baton/internal/batond.proto).
#ifndef SUPERVISOR_BATOND_REJOIN_SERVER_H_
#define SUPERVISOR_BATOND_REJOIN_SERVER_H_

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/token_bucket.h"
#include "lib/channel/acceptor.h"
#include "lib/channel/framed_socket.h"
#include "proto/baton/internal/batond.pb.h"
#include "supervisor/batond/spawn.h"

namespace baton {

// Answers only root, the user of this process and `user`. A client that breaks the protocol, or
// asks without a pause, keeps nobody waiting, and does not fill the log. Drivers and control have a
// server each, so that control cannot keep drivers from theirs. Thread-compatible: `io`'s thread.
class RejoinServer {
 public:
  // Takes `process` in. Returns the descriptors of RejoinReply.
  using TakeIn = std::function<absl::StatusOr<std::vector<FileDescriptor>>(
      const internal::RejoinRequest& request, SpawnedProcess process, FileDescriptor lock)>;

  // `who`: what is taken in, for the log, where the service's name follows it.
  RejoinServer(boost::asio::io_context& io, std::string who, std::optional<uid_t> user,
               TakeIn take_in);
  ~RejoinServer();
  RejoinServer(const RejoinServer&) = delete;
  RejoinServer& operator=(const RejoinServer&) = delete;

  // The socket at `path` becomes `user`'s.
  absl::Status Listen(const std::string& path);

 private:
  void Accept(FileDescriptor socket);
  absl::StatusOr<bool> AnswerOne(int client, FramedSocket& socket);
  absl::StatusOr<std::vector<FileDescriptor>> Answer(int socket,
                                                     const internal::RejoinRequest& request,
                                                     std::vector<FileDescriptor> received);

  boost::asio::io_context& io_;
  const std::string who_;
  const std::optional<uid_t> user_;
  const TakeIn take_in_;
  TokenBucket requests_;
  std::optional<Acceptor> acceptor_;
  std::map<int, std::shared_ptr<FramedSocket>> clients_;  // by number
  int last_client_ = 0;
};

}  // namespace baton

#endif  // SUPERVISOR_BATOND_REJOIN_SERVER_H_
