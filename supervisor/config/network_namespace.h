// The network namespace that a service's configuration names.
#ifndef SUPERVISOR_CONFIG_NETWORK_NAMESPACE_H_
#define SUPERVISOR_CONFIG_NETWORK_NAMESPACE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"

namespace baton {

// Returns the path of a namespace that `ip netns` knows by `name`. A `name` that is a path is
// returned unchanged.
std::string NetworkNamespacePath(const std::string& name);

// Opens its file, for setns(2).
absl::StatusOr<FileDescriptor> OpenNetworkNamespace(const std::string& name);
// Returns the command or action that helps when the namespace cannot be opened or entered.
std::string NetworkNamespaceCure(const std::string& name, const absl::Status& why);
// Returns an error about the configuration's field, with `why` and the cure.
absl::Status NetworkNamespaceError(const std::string& name, const absl::Status& why);

// Opens the network namespace of the calling thread.
absl::StatusOr<FileDescriptor> OpenOwnNetworkNamespace();
bool IsSameNetworkNamespace(const FileDescriptor& a, const FileDescriptor& b);

// Moves the calling thread into the namespace, and so the threads and processes that it starts
// later. Needs CAP_SYS_ADMIN.
absl::Status EnterNetworkNamespace(const FileDescriptor& file);

}  // namespace baton

#endif  // SUPERVISOR_CONFIG_NETWORK_NAMESPACE_H_
