// A keeper's driver in the keeper's process.
#ifndef TESTS_SUPERVISOR_KEEPER_HOSTED_DRIVER_H_
#define TESTS_SUPERVISOR_KEEPER_HOSTED_DRIVER_H_

#include <sys/eventfd.h>

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/base/file_descriptor.h"
#include "supervisor/driver/driver_host.h"
#include "supervisor/keeper/service_driver.h"

namespace baton::keeper::testing {

// Its engine runs as long as it lives. It holds nothing for another keeper.
class HostedDriver final : public ServiceDriver {
 public:
  explicit HostedDriver(std::unique_ptr<driver_process::DriverHost> host)
      : wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), host_(std::move(host)) {
    host_->news().SetWake([fd = wake_.get()] { eventfd_write(fd, 1); });
    host_->Start();
    introduced_ = host_->Introduce();
  }

  driver_process::ServiceEngine& engine() { return host_->engine(); }

  const arena::Arena& arena() const override { return host_->driver().arena(); }
  std::string_view device_name() const override { return host_->driver().device_name(); }
  int news_fd() const override { return wake_.get(); }
  internal::DriverAnswer Execute(const internal::DriverOrder& order,
                                 std::vector<FileDescriptor> descriptors,
                                 std::vector<FileDescriptor>* received) override {
    return host_->driver().Execute(order, std::move(descriptors), received);
  }

 protected:
  std::vector<internal::DriverNews> TakeNews() override {
    eventfd_t count;
    (void)eventfd_read(wake_.get(), &count);
    return host_->news().Take();
  }

 private:
  const FileDescriptor wake_;  // the engine writes to it until the host's end
  const std::unique_ptr<driver_process::DriverHost> host_;
};

}  // namespace baton::keeper::testing

#endif  // TESTS_SUPERVISOR_KEEPER_HOSTED_DRIVER_H_
