#include "tests/supervisor/batond/fake_manager.h"

#include <fcntl.h>
#include <linux/kcmp.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "lib/base/check.h"

namespace baton {
namespace {

constexpr char kSync[] = "SYNC";
constexpr char kEnd[] = "END";

sockaddr_un AddressOf(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  return address;
}

void SendTo(const std::string& path, const std::string& text) {
  const FileDescriptor socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const sockaddr_un address = AddressOf(path);
  BATON_CHECK(sendto(socket.get(), text.data(), text.size(), 0,
                     reinterpret_cast<const sockaddr*>(&address), sizeof(address)) > 0);
}

// The value of KEY= in a line of its own; empty: there is none.
std::string ValueOf(const std::string& message, const std::string& key) {
  const std::string lines = "\n" + message + "\n";
  const size_t start = lines.find("\n" + key + "=");
  if (start == std::string::npos) return "";
  const size_t value = start + key.size() + 2;
  return lines.substr(value, lines.find('\n', value) - value);
}

}  // namespace

FakeManager::FakeManager(const std::string& path, size_t most)
    : path_(path), most_(most), socket_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
  const sockaddr_un address = AddressOf(path);
  BATON_CHECK(bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) ==
              0);
  thread_ = std::thread([this] { Serve(); });
}

FakeManager::~FakeManager() {
  SendTo(path_, kEnd);
  thread_.join();
}

void FakeManager::Serve() {
  for (;;) {
    char text[4096];
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    iovec data = {text, sizeof(text)};
    msghdr header = {};
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
    const ssize_t length = recvmsg(socket_.get(), &header, MSG_CMSG_CLOEXEC);
    BATON_CHECK(length > 0);
    FileDescriptor descriptor;
    if (const cmsghdr* item = CMSG_FIRSTHDR(&header); item != nullptr) {
      int number = -1;
      std::memcpy(&number, CMSG_DATA(item), sizeof(number));
      descriptor.Reset(number);
    }
    const std::string message(text, static_cast<size_t>(length));
    if (message == kEnd) return;
    Heed(message, std::move(descriptor));
  }
}

void FakeManager::Heed(const std::string& message, FileDescriptor descriptor) {
  const std::lock_guard lock(mutex_);
  const std::string name = ValueOf(message, "FDNAME");
  if (message == kSync) {
    ++syncs_;
    caught_up_.notify_all();
  } else if (ValueOf(message, "FDSTORE") == "1") {
    // Otherwise it is given up as soon as it polls as broken.
    BATON_CHECK(ValueOf(message, "FDPOLL") == "0");
    Keep(name, std::move(descriptor));
  } else if (ValueOf(message, "FDSTOREREMOVE") == "1") {
    std::erase_if(kept_, [&](const Named& one) { return one.first == name; });
  } else {
    told_.push_back(message);
  }
}

void FakeManager::Keep(const std::string& name, FileDescriptor descriptor) {
  if (kept_.size() >= most_) return;
  for (const Named& one : kept_) {
    if (syscall(SYS_kcmp, getpid(), getpid(), KCMP_FILE, one.second.get(), descriptor.get()) == 0) {
      return;
    }
  }
  kept_.insert(kept_.begin(), Named(name, std::move(descriptor)));
}

void FakeManager::Add(const std::string& name, FileDescriptor descriptor) {
  const std::lock_guard lock(mutex_);
  Keep(name, std::move(descriptor));
}

void FakeManager::CatchUp() {
  std::unique_lock lock(mutex_);
  const int before = syncs_;
  lock.unlock();
  SendTo(path_, kSync);
  lock.lock();
  caught_up_.wait(lock, [&] { return syncs_ > before; });
}

std::vector<FakeManager::Named> FakeManager::Kept() {
  CatchUp();
  const std::lock_guard lock(mutex_);
  std::vector<Named> copies;
  for (const auto& [name, descriptor] : kept_) {
    copies.emplace_back(name, FileDescriptor(fcntl(descriptor.get(), F_DUPFD_CLOEXEC, 0)));
  }
  return copies;
}

void FakeManager::LetGo() {
  CatchUp();
  const std::lock_guard lock(mutex_);
  kept_.clear();
}

std::vector<std::string> FakeManager::Told() {
  CatchUp();
  const std::lock_guard lock(mutex_);
  return told_;
}

}  // namespace baton
