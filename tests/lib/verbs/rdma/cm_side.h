// One side of connections, by librdmacm or by CmFile, with the same interface: what the one does is
// compared with what the other does. There are no queue pairs: the kernel's connection manager asks
// only for their numbers.
//
// Calls return 0 or an errno. Thread-compatible.
#ifndef TESTS_LIB_VERBS_RDMA_CM_SIDE_H_
#define TESTS_LIB_VERBS_RDMA_CM_SIDE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "lib/verbs/rdma/cm_file.h"

namespace baton::verbs::rdma {

struct SideEvent {
  int id = -1;        // a request: its own, new one
  int listener = -1;  // of a request
  CmEventNumber number = CmEventNumber::kAddressError;
  int status = 0;
  CmParameters parameters;  // the peer's
};

class CmSide {
 public:
  virtual ~CmSide() = default;

  // Ids of a side are counted from 0.
  virtual int Create(int* id) = 0;
  virtual int Destroy(int id) = 0;
  virtual int Bind(int id, const Address& local) = 0;
  virtual int Listen(int id, int backlog) = 0;
  virtual int ResolveAddress(int id, const Address& peer, int timeout_ms) = 0;
  virtual int ResolveRoute(int id, int timeout_ms) = 0;
  virtual int Connect(int id, const CmParameters& parameters) = 0;
  virtual int Establish(int id) = 0;
  virtual int Accept(int id, const CmParameters& parameters) = 0;
  virtual int Reject(int id, const std::string& private_data) = 0;
  virtual int Disconnect(int id) = 0;
  virtual int Attributes(int id, ibv_qp_state state, CmQueuePairAttributes* attributes) = 0;
  virtual int NotifyEstablished(int id) = 0;
  virtual int SetTypeOfService(int id, uint8_t value) = 0;
  virtual int SetReuseAddress(int id, bool reuse) = 0;
  virtual int SetAddressFamilyOnly(int id, bool only) = 0;
  virtual int SetAckTimeout(int id, uint8_t exponent) = 0;
  virtual uint16_t Port(int id) = 0;

  virtual bool Next(SideEvent* event) = 0;
  virtual int fd() const = 0;
};

std::unique_ptr<CmSide> ByLibrary();
std::unique_ptr<CmSide> ByClient();

// Waits for the next event; false: none came in the time that a test has.
bool Await(CmSide& side, SideEvent* event);

}  // namespace baton::verbs::rdma

#endif  // TESTS_LIB_VERBS_RDMA_CM_SIDE_H_
