// The socket at which drivers that outlived a former batond introduce themselves
// (proto/baton/internal/batond.proto).
#ifndef SUPERVISOR_BATOND_REJOIN_SERVER_H_
#define SUPERVISOR_BATOND_REJOIN_SERVER_H_

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
#include "lib/channel/acceptor.h"
#include "lib/channel/framed_socket.h"
#include "proto/baton/internal/batond.pb.h"
#include "supervisor/batond/spawn.h"

namespace baton {

// Answers only root and the user of this process. A client that breaks the protocol, or asks
// without a pause, keeps nobody waiting. Thread-compatible: `io`'s thread.
class RejoinServer {
 public:
  // Takes the driver `process` in. Returns the descriptors of RejoinReply.
  using TakeIn = std::function<absl::StatusOr<std::vector<FileDescriptor>>(
      const internal::RejoinRequest& request, SpawnedProcess process, FileDescriptor lock)>;

  RejoinServer(boost::asio::io_context& io, TakeIn take_in)
      : io_(io), take_in_(std::move(take_in)) {}
  ~RejoinServer();
  RejoinServer(const RejoinServer&) = delete;
  RejoinServer& operator=(const RejoinServer&) = delete;

  absl::Status Listen(const std::string& path);

 private:
  void Accept(FileDescriptor socket);
  absl::StatusOr<bool> AnswerOne(int client, FramedSocket& socket);
  absl::StatusOr<std::vector<FileDescriptor>> Answer(int socket,
                                                     const internal::RejoinRequest& request,
                                                     std::vector<FileDescriptor> received);

  boost::asio::io_context& io_;
  const TakeIn take_in_;
  std::optional<Acceptor> acceptor_;
  std::map<int, std::shared_ptr<FramedSocket>> clients_;  // by number
  int last_client_ = 0;
};

}  // namespace baton

#endif  // SUPERVISOR_BATOND_REJOIN_SERVER_H_
