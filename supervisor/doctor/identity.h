#ifndef SUPERVISOR_DOCTOR_IDENTITY_H_
#define SUPERVISOR_DOCTOR_IDENTITY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace baton::doctor {

// The user as which batond is going to run.
struct Identity {
  std::string name;
  uint32_t uid = 0;
  uint32_t gid = 0;
  std::vector<uint32_t> groups;  // besides gid
  bool self = true;              // this process is it
};

Identity OwnIdentity();
// kNotFound: there is no such user.
absl::StatusOr<Identity> IdentityOf(const std::string& user);

}  // namespace baton::doctor

#endif  // SUPERVISOR_DOCTOR_IDENTITY_H_
