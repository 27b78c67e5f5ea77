// Linux before 6.5, as far as the processes at the other ends of sockets go.
#ifndef TESTS_SUPERVISOR_KEEPER_OLDER_KERNEL_H_
#define TESTS_SUPERVISOR_KEEPER_OLDER_KERNEL_H_

namespace baton::keeper::testing {

// While one lives, getsockopt(2) of this process knows no SO_PEERPIDFD.
class OlderKernel {
 public:
  OlderKernel();
  ~OlderKernel();
  OlderKernel(const OlderKernel&) = delete;
  OlderKernel& operator=(const OlderKernel&) = delete;
};

}  // namespace baton::keeper::testing

#endif  // TESTS_SUPERVISOR_KEEPER_OLDER_KERNEL_H_
