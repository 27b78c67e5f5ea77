// pidfd_open(2) and pidfd_send_signal(2).
#ifndef LIB_BASE_PIDFD_H_
#define LIB_BASE_PIDFD_H_

extern "C" {  // which the header of glibc 2.36 forgets
#include <sys/pidfd.h>
}

#endif  // LIB_BASE_PIDFD_H_
