// A test sends these orders to the processes that it executes (cm_keeper.cc, cm_host.cc), which
// answer in the same form. The functions for memory regions are theirs.
#ifndef TESTS_LIB_VERBS_RDMA_CM_MESSAGE_H_
#define TESTS_LIB_VERBS_RDMA_CM_MESSAGE_H_

#include <atomic>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "lib/base/file_descriptor.h"
#include "lib/verbs/rdma/cm_file.h"
#include "lib/verbs/rdma/region_handle.h"

namespace baton::verbs::rdma {

// Registers `region->bytes` from `memory` on, in the domain with this handle, to be named by
// `region->address`. Both begin at the same place of a page. Returns 0 or an errno.
int RegisterRegion(int uverbs, uint32_t domain, const void* memory, uint32_t access,
                   Region* region);

enum class CmOrder : uint32_t {
  // ---- a keeper's
  kOpen,       // gives its rdma_cm file
  kListen,     // at `address`; gives the id
  kPort,       // of `id`
  kCreate,     // with `uid`; gives the id
  kResolve,    // `id` to `address`
  kRoute,      // of `id`
  kConnect,    // `id` with `parameters`
  kEstablish,  // `id`
  kNext,       // event into slot `slot`; `number`: whether there is one
  kAttributes,
  kAccept,
  kReject,
  kDisconnect,
  kDestroy,
  kNotify,      // `number`: the CmAnswer
  kTake,        // all ids below `number` from the files that come with it, the listener `id` first
  kTakeOne,     // `id`
  kServe,       // as kTake, then rejects requests for ever
  kUseAnother,  // makes an id in the file that comes with it
  kRenew,       // executes itself in place and goes on with its file
  kMap,         // the memory that comes with it
  kRegister,    // `region` of that memory, by the uverbs file that comes with it
  kFindRegion,
  kDestroyRegion,
  // ---- a host's
  kOpenDevice,  // gives the uverbs file, its memory and `number` queue pairs; `id`: the domain
  kModify,      // queue pair `slot` by `attributes`
  kAnswer,  // waits for a message on queue pair `slot`, gives it in `text`, and sends `text` back
  kState,   // of queue pair `slot`
  kRead,    // `text` is what is at `number` in its memory
};

inline constexpr int kQueuePairs = 12;
inline constexpr int kMostIds = 32;

struct CmMessage {
  CmOrder order = CmOrder::kOpen;
  int32_t error = 0;  // of an answer: an errno
  uint32_t id = 0;
  uint32_t slot = 0;
  uint64_t uid = 0;
  uint64_t number = 0;
  SocketAddress address;
  CmParameters parameters;
  CmQueuePairAttributes attributes;
  Region region;
  uint32_t ids[kMostIds] = {};  // kOpenDevice: numbers of queue pairs; kTake: what was taken
  char text[256] = {};          // also why it failed
};
static_assert(std::is_trivially_copyable_v<CmMessage>);

// Memory that keepers share with their successors.
struct CmKeeperMemory {
  CmEventSlot slots[16];
  std::atomic<uint64_t> answered = 0;   // kServe: requests that it has read and rejected
  std::atomic<uint64_t> left_over = 0;  // of a predecessor, which had read them
};

// Datagrams of a UNIX socket. Returns false if the other side is gone, or nothing came for
// `timeout_ms` (-1: for ever).
bool SendMessage(int socket, const CmMessage& message, const std::vector<int>& files = {});
bool ReceiveMessage(int socket, CmMessage* message, std::vector<FileDescriptor>* files,
                    int timeout_ms = -1);

}  // namespace baton::verbs::rdma

#endif  // TESTS_LIB_VERBS_RDMA_CM_MESSAGE_H_
