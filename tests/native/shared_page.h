// An object that processes share: made before they are forked, or given on by its descriptor.
#ifndef TESTS_NATIVE_SHARED_PAGE_H_
#define TESTS_NATIVE_SHARED_PAGE_H_

#include <sys/mman.h>
#include <unistd.h>

#include <new>
#include <utility>

#include "lib/base/check.h"
#include "lib/base/file_descriptor.h"

namespace baton::native {

template <typename Object>
class SharedPage {
 public:
  SharedPage() : file_(memfd_create("shared page", /*flags=*/0)) {
    BATON_CHECK(file_ && ftruncate(file_.get(), sizeof(Object)) == 0);
    Map();
    new (object_) Object;
  }
  // Another process's.
  explicit SharedPage(FileDescriptor file) : file_(std::move(file)) { Map(); }
  ~SharedPage() { munmap(object_, sizeof(Object)); }
  SharedPage(const SharedPage&) = delete;
  SharedPage& operator=(const SharedPage&) = delete;

  int fd() const { return file_.get(); }
  Object* get() const { return object_; }
  Object* operator->() const { return object_; }

 private:
  void Map() {
    void* const page =
        mmap(nullptr, sizeof(Object), PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
    BATON_CHECK(page != MAP_FAILED);
    object_ = static_cast<Object*>(page);
  }

  FileDescriptor file_;
  Object* object_;
};

}  // namespace baton::native

#endif  // TESTS_NATIVE_SHARED_PAGE_H_
