#ifndef SUPERVISOR_BATOND_STORE_SERVER_H_
#define SUPERVISOR_BATOND_STORE_SERVER_H_

#include <boost/asio/io_context.hpp>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "lib/base/file_descriptor.h"
#include "lib/loop/framed_session.h"
#include "proto/baton/internal/store.pb.h"
#include "supervisor/batond/descriptor_store.h"

namespace baton {

// Answers the store requests of one driver process over its socketpair. A driver that breaks the
// protocol loses its channel and nothing else. Lives as long as that process; the store is the
// service's and lives on.
class StoreServer {
 public:
  StoreServer(boost::asio::io_context& io, std::string keeper, FileDescriptor socket,
              DescriptorStore& store);
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

 private:
  absl::StatusOr<bool> ServeOne();
  absl::Status Serve(const internal::StoreRequest& request,
                     std::vector<FileDescriptor> descriptors);

  std::string keeper_;  // for the log
  DescriptorStore& store_;
  std::shared_ptr<FramedSession> session_;  // null: the driver has broken the protocol, or is gone
};

}  // namespace baton

#endif  // SUPERVISOR_BATOND_STORE_SERVER_H_
