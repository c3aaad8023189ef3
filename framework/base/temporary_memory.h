#ifndef FRAMEWORK_BASE_TEMPORARY_MEMORY_H_
#define FRAMEWORK_BASE_TEMPORARY_MEMORY_H_

namespace tessera {

// While one exists, the tensors that its thread makes are temporary: they are
// not put into memory that ranks share (framework/dist/copy_engine_memory.h),
// because all ranks must allocate the same there.
class TemporaryMemoryScope {
 public:
  TemporaryMemoryScope() { ++scopes_; }
  ~TemporaryMemoryScope() { --scopes_; }
  TemporaryMemoryScope(const TemporaryMemoryScope&) = delete;
  TemporaryMemoryScope& operator=(const TemporaryMemoryScope&) = delete;

  static bool Exists() { return scopes_ > 0; }

 private:
  static inline thread_local int scopes_ = 0;
};

}  // namespace tessera

#endif  // FRAMEWORK_BASE_TEMPORARY_MEMORY_H_
