#ifndef SUPERVISOR_BATOND_STORE_SERVER_H_
#define SUPERVISOR_BATOND_STORE_SERVER_H_

#include <boost/asio/io_context.hpp>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "lib/loop/framed_session.h"
#include "proto/baton/internal/store.pb.h"

namespace baton {

// The descriptors of one service, by name. Thread-compatible. Bounded, so that a driver cannot use
// up the descriptors of batond: the other services need them.
class DescriptorStore {
 public:
  static constexpr size_t kMaxNames = 64;
  static constexpr size_t kMaxNameBytes = 64;

  using Entries = std::map<std::string, std::vector<FileDescriptor>>;
  // Told of each entry that was put or dropped (then there are none), after it was. They stay the
  // store's.
  using OnChange =
      std::function<void(const std::string& name, const std::vector<int>& descriptors)>;

  DescriptorStore() = default;
  DescriptorStore(Entries entries, OnChange on_change)
      : entries_(std::move(entries)), on_change_(std::move(on_change)) {}

  // Takes the place of what was there under `name`.
  absl::Status Put(const std::string& name, std::vector<FileDescriptor> descriptors);

  // They stay the store's; valid until the next Put or Drop of `name`.
  absl::StatusOr<std::vector<int>> Get(const std::string& name) const;

  absl::Status Drop(const std::string& name);

  std::vector<std::string> List() const;  // sorted

 private:
  Entries entries_;
  OnChange on_change_;  // may be none
};

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
