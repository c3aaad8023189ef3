#ifndef FRAMEWORK_BASE_FILE_DESCRIPTOR_H_
#define FRAMEWORK_BASE_FILE_DESCRIPTOR_H_

#include <unistd.h>

#include <utility>

namespace tessera {

// An open file, an end of a pipe or a socket, which the destructor closes.
// Negative: none.
class FileDescriptor {
 public:
  explicit FileDescriptor(int fd = -1) : fd_(fd) {}
  ~FileDescriptor() { Close(); }
  FileDescriptor(FileDescriptor&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }

  int fd() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  // The result of close(), which sets errno; 0 if nothing is open.
  int Close() { return is_open() ? ::close(std::exchange(fd_, -1)) : 0; }

 private:
  int fd_;
};

}  // namespace tessera

#endif  // FRAMEWORK_BASE_FILE_DESCRIPTOR_H_
