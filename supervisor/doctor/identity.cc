#include "supervisor/doctor/identity.h"

#include <grp.h>
#include <pwd.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace baton::doctor {

Identity OwnIdentity() {
  Identity identity;
  identity.uid = geteuid();
  identity.gid = getegid();
  const passwd* const user = getpwuid(identity.uid);
  identity.name = user != nullptr ? user->pw_name : absl::StrCat(identity.uid);
  const int count = getgroups(0, nullptr);
  identity.groups.resize(count > 0 ? static_cast<size_t>(count) : 0);
  if (getgroups(count, identity.groups.data()) < 0) identity.groups.clear();
  return identity;
}

absl::StatusOr<Identity> IdentityOf(const std::string& user) {
  const passwd* const entry = getpwnam(user.c_str());
  if (entry == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("there is no user \"", user, "\"; make it with: useradd --system ", user));
  }
  Identity identity;
  identity.name = user;
  identity.uid = entry->pw_uid;
  identity.gid = entry->pw_gid;
  int count = 0;
  getgrouplist(user.c_str(), identity.gid, nullptr, &count);
  identity.groups.resize(count > 0 ? static_cast<size_t>(count) : 0);
  if (getgrouplist(user.c_str(), identity.gid, identity.groups.data(), &count) < 0) {
    identity.groups.clear();
  }
  identity.self = identity.uid == geteuid();
  return identity;
}

}  // namespace baton::doctor
