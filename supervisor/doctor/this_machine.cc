#include "supervisor/doctor/this_machine.h"

#include <dlfcn.h>
#include <grp.h>
#include <ifaddrs.h>
#include <pwd.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/timex.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "lib/verbs/rdma/rdma_device.h"
#include "lib/verbs/socket_address.h"
#include "supervisor/config/network_namespace.h"

namespace baton::doctor {
namespace {

// Files of sysfs and procfs that are read have at most one page; modules.dep has more.
constexpr size_t kMaxFileBytes = 4 << 20;

// Returns the name of the real file of the library that has `symbol`.
std::string FileOf(const char* symbol) {
  Dl_info info = {};
  void* const address = dlsym(RTLD_DEFAULT, symbol);
  if (address == nullptr || dladdr(address, &info) == 0 || info.dli_fname == nullptr) return "";
  std::error_code error;
  const std::filesystem::path file = std::filesystem::canonical(info.dli_fname, error);
  return error ? "" : file.filename().string();
}

}  // namespace

std::optional<std::string> ThisMachine::Read(const std::string& path) const {
  std::ifstream file(root_ + path, std::ios::binary);
  if (!file) return std::nullopt;
  std::string text;
  std::array<char, 4096> part;
  while (text.size() < kMaxFileBytes) {
    file.read(part.data(), part.size());
    text.append(part.data(), static_cast<size_t>(file.gcount()));
    if (!file) break;
  }
  // If there is no value, sysfs fails the read, not the open.
  if (file.bad()) return std::nullopt;
  absl::StripTrailingAsciiWhitespace(&text);
  return text;
}

std::vector<std::string> ThisMachine::List(const std::string& path) const {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(root_ + path, error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::optional<FileFacts> ThisMachine::Look(const std::string& path) const {
  struct stat info = {};
  if (stat((root_ + path).c_str(), &info) != 0) return std::nullopt;
  FileFacts facts{.mode = info.st_mode, .uid = info.st_uid, .gid = info.st_gid, .device = {}};
  if (S_ISCHR(info.st_mode) || S_ISBLK(info.st_mode)) {
    facts.device = absl::StrCat(major(info.st_rdev), ":", minor(info.st_rdev));
  }
  return facts;
}

std::string ThisMachine::LinkName(const std::string& path) const {
  std::error_code error;
  return std::filesystem::read_symlink(root_ + path, error).filename().string();
}

absl::Status ThisMachine::LookForNetworkNamespace(const std::string& name) const {
  return OpenNetworkNamespace(root_ + NetworkNamespacePath(name)).status();
}

std::optional<uint32_t> ThisMachine::GroupId(const std::string& name) const {
  const group* const entry = getgrnam(name.c_str());
  if (entry == nullptr) return std::nullopt;
  return entry->gr_gid;
}

std::vector<InterfaceAddress> ThisMachine::Addresses() const {
  std::vector<InterfaceAddress> addresses;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return addresses;
  for (const ifaddrs* entry = all; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    const std::string text = verbs::FromSocketAddress(*entry->ifa_addr).host;
    if (!text.empty()) addresses.push_back({entry->ifa_name, text});
  }
  freeifaddrs(all);
  return addresses;
}

std::optional<bool> ThisMachine::ClockIsSynchronized() const {
  timex state = {};  // modes 0: nothing is changed
  if (adjtimex(&state) < 0) return std::nullopt;
  return (state.status & STA_UNSYNC) == 0;
}

std::vector<std::string> ThisMachine::VerbsDevices() const {
  return verbs::rdma::ListRdmaDevices();
}

absl::StatusOr<verbs::DeviceLimits> ThisMachine::Limits(const std::string& device,
                                                        uint32_t port) const {
  verbs::rdma::RdmaDeviceOptions options;
  options.device = device;
  options.port = static_cast<uint8_t>(port);
  absl::StatusOr<std::unique_ptr<verbs::Device>> opened = verbs::rdma::CreateRdmaDevice(options);
  if (!opened.ok()) return opened.status();
  return (*opened)->limits();
}

std::string ThisMachine::VerbsLibrary() const { return FileOf("ibv_get_device_list"); }

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
